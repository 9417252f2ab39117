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
from data_prep.table.items import item_features
from data_prep.table.spec import Request
from recsys_moe.schema import DataError


def prepare_rows(places: list[Path], request: Request, *, presplit: bool) -> Prepared:
    """The rows of the files at `places`; `presplit`: each place is a split, in their order.

    Raises DataError for a file or a cell that cannot be used.
    """
    parts = [table_files.read(place, request.columns) for place in places]
    sizes = [sum(len(file.columns) for file in part) for part in parts]
    files = [file for part in parts for file in part]
    raw, kept = _distinct(_raw(files, places, request), files, request)
    return protocols.prepare_rows(
        raw,
        protocol=request.protocol,
        seed=request.seed,
        command=request.command,
        to_draw=request.to_draw,
        holdout=request.holdout,
        given=np.repeat(np.arange(len(parts), dtype=np.int8), sizes)[kept] if presplit else None,
        repeats=request.duplicates == "keep",
    )


def _raw(files: list[TableFile], places: list[Path], request: Request) -> Raw:
    rows = pa.concat_tables([table_columns.rows(file, request) for file in files])
    if len(rows) == 0:
        raise DataError(f"{files[0].label}: has no rows")
    return Raw(
        name="table",
        user=ids.integers_if_canonical(rows["user"]),
        item=ids.integers_if_canonical(rows["item"]),
        **table_columns.values_of(rows),
        tasks=tuple(task for task, _ in request.tasks),
        file=files[0].label if len(files) == 1 else "the files",
        items=item_features(request.items, request.item),
        sources=table_files.sources(*places, request.items),
    )


def _distinct(raw: Raw, files: list[TableFile], request: Request) -> tuple[Raw, Ints]:
    """`raw` with one row per pair, or as it is with `keep`; and which rows these are."""
    (user, _), (item, item_ids) = ids.encode(raw.user), ids.encode(raw.item)
    pairs = user * len(item_ids) + item

    def repeated(row: int) -> str:
        more = len(pairs) - len(ids.sorted_distinct(pairs))
        return (
            f"{_place(files, row)}: user {raw.user[row].as_py()!r} and item "
            f"{raw.item[row].as_py()!r} have a row before; {more} such rows"
        )

    rows = request.distinct(pairs, repeated)
    if request.duplicates == "keep":
        return raw, rows
    return raw.take(rows, dropped_repeats=len(pairs) - len(rows)), rows


def _place(files: list[TableFile], row: int) -> str:
    for file in files:
        if row < len(file.columns):
            return file.place(row)
        row -= len(file.columns)
    raise IndexError(row)
