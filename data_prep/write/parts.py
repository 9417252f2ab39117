"""The Parquet parts of a split: tables of any size in, row groups and parts of fixed sizes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.rows import UNKNOWN_TIME, WEIGHT, Examples
from recsys_moe.schema import EVENT, Task

ROWS_PER_PART = 1 << 23
ROWS_PER_GROUP = 1 << 20
FORMAT = {"compression": "zstd", "version": "2.6"}


def write_parts(tables: Iterable[pa.Table], folder: Path) -> None:
    """Row groups and parts of fixed sizes, whatever sizes the tables have."""
    groups = _groups(tables)
    for number, first in enumerate(groups):
        folder.mkdir(exist_ok=True)
        path = folder / f"part-{number:05d}.parquet"
        with pq.ParquetWriter(path, first.schema, **FORMAT) as writer:
            for group in chain([first], islice(groups, ROWS_PER_PART // ROWS_PER_GROUP - 1)):
                writer.write_table(group.combine_chunks(), row_group_size=ROWS_PER_GROUP)


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of ROWS_PER_GROUP rows; the last one may have fewer."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= ROWS_PER_GROUP:
            rows = pa.concat_tables(waiting)
            whole = len(rows) // ROWS_PER_GROUP * ROWS_PER_GROUP
            yield from (rows.slice(n, ROWS_PER_GROUP) for n in range(0, whole, ROWS_PER_GROUP))
            waiting = [rows.slice(whole)] if whole < len(rows) else []
    if waiting:
        yield pa.concat_tables(waiting)


def split_table(part: Examples, tasks: tuple[Task, ...], timed: bool) -> pa.Table:
    columns = {
        "user_index": pa.array(part.user.astype(np.int32)),
        "item_index": pa.array(part.item.astype(np.int32)),
    }
    for task in tasks:
        label = part.labels[task.name]
        columns[task.column] = pa.array(label, type=pa.float32(), mask=np.isnan(label))
    if timed:
        unknown = part.timestamp == UNKNOWN_TIME
        columns["timestamp"] = pa.array(part.timestamp, type=pa.int64(), mask=unknown)
    if part.event is not None:
        columns[EVENT] = pa.array(part.event)
    if part.weight is not None:
        columns[WEIGHT] = pa.array(part.weight)
    if part.context is not None:
        columns |= zip(part.context.column_names, part.context.columns, strict=True)
    return pa.table(columns)


def write_table(table: pa.Table, path: Path) -> None:
    """One file, in the format of the parts."""
    with pq.ParquetWriter(path, table.schema, **FORMAT) as writer:
        writer.write_table(table, row_group_size=ROWS_PER_GROUP)
