"""Prepared Parquet -> contiguous columns -> batches by whole-batch index slicing.

Axes: B batch, T tasks. There is no per-row access and no worker process: a batch of 512 is three
index operations, well under a hundredth of a training step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from recsys_moe.schema import DataError, Schema

T = TypeVar("T")
Array = npt.NDArray[Any]


class Batch(NamedTuple):
    """Indices of users and items (B,) int32; labels (B, T) float32, NaN where missing."""

    user: Tensor
    item: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Columns:
    """All rows of a split as three tensors with the layout of `Batch`."""

    user: Tensor
    item: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.user)

    def take(self, rows: Tensor | slice) -> Batch:
        return Batch(self.user[rows], self.item[rows], self.labels[rows])


class TrainBatches:
    """One epoch of training batches in an order that depends on (seed, epoch) alone.

    The last, partial batch is kept. A small share of users and items is replaced by the index of
    the unseen id, which trains that row of the embedding tables.
    """

    def __init__(
        self, columns: Columns, schema: Schema, batch_size: int, unseen_rate: float, seed: int
    ) -> None:
        self.columns = columns
        self.schema = schema
        self.batch_size = batch_size
        self.unseen_rate = unseen_rate
        self.seed = seed

    def __len__(self) -> int:
        return -(-len(self.columns) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(len(self.columns), generator=generator)
        for rows in order.split(self.batch_size):
            batch = self.columns.take(rows)
            self._hide(batch.user, self.schema.user.size, generator)
            self._hide(batch.item, self.schema.item.size, generator)
            yield batch

    def _hide(self, index_B: Tensor, unseen: int, generator: torch.Generator) -> None:
        if self.unseen_rate:
            hidden_B = torch.rand(len(index_B), generator=generator) < self.unseen_rate
            index_B.masked_fill_(hidden_B, unseen)


class EvalBatches:
    """The rows of a split in order, in slices that copy nothing."""

    def __init__(self, columns: Columns, batch_size: int) -> None:
        self.columns = columns
        self.batch_size = batch_size

    def __len__(self) -> int:
        return -(-len(self.columns) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for start in range(0, len(self.columns), self.batch_size):
            yield self.columns.take(slice(start, start + self.batch_size))


def load_columns(folder: Path, schema: Schema, split: str, max_memory_mb: int = 4096) -> Columns:
    """Read a split's Parquet parts into contiguous tensors, memory-mapped when they are larger.

    Raises DataError when the split is missing, empty, unreadable or not what schema.json says.
    """
    parts = sorted((Path(folder) / split).glob("*.parquet"))
    if not parts:
        raise DataError(f"{folder}/{split} has no Parquet part; prepare the data again")
    rows = sum(_read(pq.read_metadata, part).num_rows for part in parts)
    if rows != schema.rows.get(split) or rows == 0:
        raise DataError(
            f"{folder}/{split} holds {rows} rows, schema.json says {schema.rows.get(split)}; "
            "prepare the data again"
        )
    megabytes = rows * 4 * (2 + len(schema.tasks)) / 2**20
    create = _mapped(Path(folder) / ".columns", split) if megabytes > max_memory_mb else _in_memory
    user, item = create("user", (rows,), np.int32), create("item", (rows,), np.int32)
    labels = create("labels", (rows, len(schema.tasks)), np.float32)
    start = 0
    for part in parts:
        start = _fill(part, schema, start, user, item, labels)
    return Columns(torch.from_numpy(user), torch.from_numpy(item), torch.from_numpy(labels))


def _fill(part: Path, schema: Schema, start: int, user: Array, item: Array, labels: Array) -> int:
    """Copy one part behind row `start`, one row group at a time. Returns the next free row."""
    file = _read(pq.ParquetFile, part)
    names = [schema.user.column, schema.item.column, *(task.column for task in schema.tasks)]
    missing = [name for name in names if name not in file.schema_arrow.names]
    if missing:
        raise DataError(f"{part}: column {missing[0]!r} is missing; prepare the data again")
    for table in file.iter_batches(batch_size=1 << 20, columns=names):
        rows = slice(start, start + table.num_rows)
        user[rows] = _indices(table[schema.user.column], schema.user.size, part)
        item[rows] = _indices(table[schema.item.column], schema.item.size, part)
        for column, task in enumerate(schema.tasks):
            labels[rows, column] = table[task.column].to_numpy(zero_copy_only=False)
        start += table.num_rows
    return start


def _indices(column: pa.Array, size: int, part: Path) -> Array:
    values = column.to_numpy(zero_copy_only=False)
    if column.null_count or values.min(initial=0) < 0 or values.max(initial=0) > size:
        raise DataError(f"{part}: indices must be in 0..{size}; prepare the data again")
    return values


def _read(reader: Callable[[Path], T], part: Path) -> T:
    try:
        return reader(part)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{part} cannot be read as Parquet: {str(error).splitlines()[0]}") from None


def _in_memory(name: str, shape: tuple[int, ...], dtype: type) -> Array:
    return np.empty(shape, dtype)


def _mapped(folder: Path, split: str) -> Callable[[str, tuple[int, ...], type], Array]:
    """Columns in files of a cache folder inside the prepared data."""
    folder.mkdir(exist_ok=True)

    def create(name: str, shape: tuple[int, ...], dtype: type) -> Array:
        path = folder / f"{split}.{name}.npy"
        return np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)

    return create
