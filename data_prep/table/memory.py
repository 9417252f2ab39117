"""`prepare table` with all rows in memory: any protocol, and files that are split already."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from data_prep import ids
from data_prep.ids import Ints
from data_prep.rows import Prepared, Raw
from data_prep.split import protocols
from data_prep.table import columns as table_columns
from data_prep.table import files as table_files
from data_prep.table.files import TableFile
from data_prep.table.spec import Duplicates, Request, item_features, times
from recsys_moe.schema import DataError


def prepare_rows(places: list[Path], request: Request, *, presplit: bool) -> Prepared:
    """The rows of the files at `places`; `presplit`: each place is a split, in their order.

    Raises DataError for a file or a cell that cannot be used.
    """
    parts = [table_files.read(place, request.columns.names()) for place in places]
    given = np.repeat(np.arange(len(parts), dtype=np.int8), [_rows(part) for part in parts])
    files = [file for part in parts for file in part]
    raw, kept = _distinct(_raw(files, request), files, request.duplicates)
    return protocols.prepare_rows(
        raw,
        protocol=request.protocol,
        seed=request.seed,
        command=request.command,
        negative_task=request.negative_task,
        given=given[kept] if presplit else None,
        repeats=request.duplicates == "keep",
    )


def _rows(files: list[TableFile]) -> int:
    return sum(len(file.columns) for file in files)


def _raw(files: list[TableFile], request: Request) -> Raw:
    columns = request.columns

    def joined(column: str) -> pa.Array:
        return pa.concat_arrays([table_columns.ids(file, column) for file in files])

    if _rows(files) == 0:
        raise DataError(f"{files[0].label}: has no rows")
    features, extra = item_features(request.items, columns.item)
    return Raw(
        name="table",
        user=ids.integers_if_canonical(joined(columns.user)),
        item=ids.integers_if_canonical(joined(columns.item)),
        labels={
            task.name: np.concatenate([table_columns.labels(f, column, task.kind) for f in files])
            for task, column in columns.tasks
        },
        timestamp=np.concatenate([times(file, columns.timestamp) for file in files]),
        tasks=tuple(task for task, _ in columns.tasks),
        file=files[0].label if len(files) == 1 else "the files",
        items=features,
        sources=tuple(file.source for file in [*files, *extra]),
    )


def _distinct(raw: Raw, files: list[TableFile], duplicates: Duplicates) -> tuple[Raw, Ints]:
    """`raw` with one row per pair, or as it is with `keep`; and which rows these are."""
    everything = np.arange(len(raw.timestamp))
    if duplicates == "keep":
        return raw, everything
    (user, _), (item, item_ids) = ids.encode(raw.user), ids.encode(raw.item)
    rows = ids.one_per_value(user * len(item_ids) + item, last=duplicates == "last")
    dropped = len(everything) - len(rows)
    if dropped and duplicates == "error":
        again = int(np.setdiff1d(everything, rows)[0])
        raise DataError(
            f"{_place(files, again)}: user {raw.user[again].as_py()!r} and item "
            f"{raw.item[again].as_py()!r} have a row before; {dropped} such rows; "
            "pass --duplicates first, last or keep"
        )
    return raw.take(rows, dropped_repeats=dropped), rows


def _place(files: list[TableFile], row: int) -> str:
    for file in files:
        if row < len(file.columns):
            return file.place(row)
        row -= len(file.columns)
    raise IndexError(row)
