"""A table of one's own, in CSV, TSV or Parquet: `recsys-moe prepare table`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa

from data_prep import ids
from data_prep.ids import Ints
from data_prep.options import at_least, one_of
from data_prep.rows import Raw
from data_prep.split import protocols
from data_prep.table import columns as table_columns
from data_prep.table import engines
from data_prep.table import files as table_files
from data_prep.table import stream as table_stream
from data_prep.table.files import TableFile
from data_prep.table.spec import Columns, Duplicates, command, item_features, parse_tasks, times
from data_prep.write import writer
from recsys_moe.schema import SPLITS, ConfigError, DataError, Schema


def prepare(
    out: Path,
    *,
    user: str,
    item: str,
    tasks: Sequence[str],
    input: Path | None = None,
    train: Path | None = None,
    val: Path | None = None,
    test: Path | None = None,
    timestamp: str | None = None,
    items: Path | None = None,
    negatives: Literal["none", "per-user"] = "none",
    duplicates: Duplicates = "error",
    protocol: str = "paper",
    seed: int = 0,
    force: bool = False,
    engine: str = "memory",
    max_memory_mb: int = 2048,
    scheduler: str = "processes",
) -> Schema:
    """Prepare `input` (a file or a folder of files), or `train`, `val` and `test` as they are.

    `tasks`: NAME:KIND=COLUMN, as in "watch:binary=clicked"; an empty cell is a missing label.
    `items`: a file with more about the items, by the same item column. `negatives` per-user draws
    unlabelled items for the first binary task. `duplicates`: what to do when a (user, item) pair
    has several rows. `engine`: `memory` holds everything, `stream` and `dask` hold pieces
    for which `max_memory_mb` is enough and write the same bytes (protocol `hash` only); `scheduler`
    is Dask's. Raises DataError for unusable data, ConfigError for options.
    """
    columns = Columns(user=user, item=item, tasks=parse_tasks(tasks), timestamp=timestamp)
    places = _places(input, train, val, test)
    _check_options(columns, negatives, duplicates)
    _check_protocol(protocol, seed, presplit=input is None, timed=timestamp is not None)
    _check_engine(engine, protocol, max_memory_mb, presplit=input is None)
    writer.check_target(Path(out), force)
    binary = next((task.name for task, _ in columns.tasks if task.kind == "binary"), None)
    negative_task = binary if negatives == "per-user" else None
    words = command(columns, tasks, negatives, duplicates, protocol, seed)
    if engine != "memory":
        return table_stream.prepare(
            Path(out),
            places[0],
            columns,
            items=items,
            duplicates=duplicates,
            negative_task=negative_task,
            seed=seed,
            command=words,
            max_memory_mb=max_memory_mb,
            mapper=engines.mapper(engine, scheduler),
            force=force,
        )
    parts = [table_files.read(place, columns.names()) for place in places]
    given = np.repeat(np.arange(len(parts), dtype=np.int8), [_rows(part) for part in parts])
    raw = _raw([file for part in parts for file in part], columns, items)
    raw, rows = _distinct(raw, [file for part in parts for file in part], duplicates)
    prepared = protocols.prepare_rows(
        raw,
        protocol=protocol,
        seed=seed,
        command=words,
        negative_task=negative_task,
        given=given[rows] if input is None else None,
        repeats=duplicates == "keep",
    )
    return writer.write(prepared, Path(out), force=force)


def _places(
    input: Path | None, train: Path | None, val: Path | None, test: Path | None
) -> list[Path]:
    given = [place for place in (train, val, test) if place is not None]
    if input is not None and not given:
        return [Path(input)]
    if input is None and len(given) == len(SPLITS):
        return [Path(place) for place in given]
    raise ConfigError("give either --input, or all three of --train, --val and --test")


def _check_options(columns: Columns, negatives: str, duplicates: str) -> None:
    one_of("--negatives", negatives, ("none", "per-user"))
    one_of("--duplicates", duplicates, ("error", "first", "last", "keep"))
    if negatives == "per-user" and all(task.kind != "binary" for task, _ in columns.tasks):
        raise ConfigError("--negatives per-user needs a binary task; add --task NAME:binary=COLUMN")


def _check_protocol(protocol: str, seed: int, presplit: bool, timed: bool) -> None:
    protocols.check_options(protocol, seed)
    if protocol != "paper" and presplit:
        raise ConfigError(f"--protocol {protocol} splits --input; --train, --val, --test are split")
    if protocol not in protocols.ALL_KNOWN and not timed:
        raise ConfigError(f"--protocol {protocol} needs --timestamp COLUMN")


def _check_engine(engine: str, protocol: str, max_memory_mb: int, presplit: bool) -> None:
    one_of("--engine", engine, ("memory", *engines.ENGINES))
    at_least("--max-memory-mb", max_memory_mb, 1)
    if engine == "memory":
        return
    if presplit:
        raise ConfigError(f"--engine {engine} splits --input; --train, --val, --test need memory")
    if protocol != "hash":
        raise ConfigError(
            f"--engine {engine} must have --protocol hash, got {protocol}, which needs all rows "
            "at once; pass --protocol hash, or --engine memory"
        )


def _rows(files: list[TableFile]) -> int:
    return sum(len(file.columns) for file in files)


def _raw(files: list[TableFile], columns: Columns, items: Path | None) -> Raw:
    def joined(column: str) -> pa.Array:
        return pa.concat_arrays([table_columns.ids(file, column) for file in files])

    if _rows(files) == 0:
        raise DataError(f"{files[0].label}: has no rows")
    features, extra = item_features(items, columns.item)
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
