"""The Parquet parts of a split: tables of any size in, row groups and parts of fixed sizes out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_prep.rows import UNKNOWN_TIME, Examples
from recsys_moe.schema import Task

ROWS_PER_PART = 1 << 23
ROWS_PER_GROUP = 1 << 20
FORMAT = {"compression": "zstd", "version": "2.6"}


class Parts:
    """Cuts tables into row groups and parts of fixed sizes, whatever sizes they come in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: list[pa.Table] = []
        self._writer: Any = None
        self._files = 0
        self._rows_in_part = 0

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, kind: type[BaseException] | None, *unused: object) -> None:
        if kind is None and self._waiting:
            self._write_group(pa.concat_tables(self._waiting))
        if self._writer is not None:
            self._writer.close()

    def add(self, table: pa.Table) -> None:
        self._waiting.append(table)
        if sum(map(len, self._waiting)) < ROWS_PER_GROUP:
            return
        rows = pa.concat_tables(self._waiting)
        whole = len(rows) // ROWS_PER_GROUP * ROWS_PER_GROUP
        for start in range(0, whole, ROWS_PER_GROUP):
            self._write_group(rows.slice(start, ROWS_PER_GROUP))
        self._waiting = [rows.slice(whole)] if whole < len(rows) else []

    def _write_group(self, rows: pa.Table) -> None:
        if self._writer is None or self._rows_in_part >= ROWS_PER_PART:
            self._writer = self._next_part(rows.schema)
        self._writer.write_table(rows.combine_chunks(), row_group_size=ROWS_PER_GROUP)
        self._rows_in_part += len(rows)

    def _next_part(self, schema: pa.Schema) -> Any:
        if self._writer is not None:
            self._writer.close()
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"part-{self._files:05d}.parquet"
        self._files, self._rows_in_part = self._files + 1, 0
        return pq.ParquetWriter(path, schema, **FORMAT)


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
    return pa.table(columns)


def write_table(table: pa.Table, path: Path) -> None:
    """One file, in the format of the parts."""
    with pq.ParquetWriter(path, table.schema, **FORMAT) as writer:
        writer.write_table(table, row_group_size=ROWS_PER_GROUP)
