"""Prepared Parquet -> contiguous columns.

Axes: B batch, T tasks, N rows. What does not fit in memory stays a `StoredColumns`, which
`recsys_moe.data.streaming` reads by row group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from recsys_moe.files import check_kind
from recsys_moe.kinds import Kind, kind_of
from recsys_moe.model.request import Request
from recsys_moe.schema import DataError, FeatureColumn, Schema


class Batch(NamedTuple):
    """Indices of users and items (B,) int32; labels (B, T) float32, NaN where missing.

    The weights of the rows (B,) float32, finite and >= 0; None where the data have none. `offset`
    (B, T) is subtracted from the logits before the loss is taken (see ResampledNegatives); None: 0.
    `context` (B, C) float32: per context feature of the model the index of a category or a
    standardised number, NaN where missing; None for a model without any.
    """

    user: Tensor
    item: Tensor
    labels: Tensor
    weight: Tensor | None = None
    offset: Tensor | None = None
    context: Tensor | None = None

    @property
    def request(self) -> Request:
        """What a model is asked about these rows."""
        return Request(self.user, self.item, self.context)


@dataclass(frozen=True)
class Columns:
    """Rows as tensors with the layout of `Batch`."""

    user: Tensor
    item: Tensor
    labels: Tensor
    weight: Tensor | None = None
    offset: Tensor | None = None
    context: Tensor | None = None

    @property
    def request(self) -> Request:
        """What a model is asked about these rows."""
        return Request(self.user, self.item, self.context)

    def room(self, rows: int) -> Columns:
        """For `rows` rows like these, with no values yet."""
        known = {name: one for name, one in vars(self).items() if one is not None}
        return Columns(**{name: v.new_empty(rows, *v.shape[1:]) for name, v in known.items()})

    def __len__(self) -> int:
        return len(self.user)

    def take(self, rows: Tensor | slice) -> Batch:
        optional = (self.weight, self.offset, self.context)
        some = (None if one is None else one[rows] for one in optional)
        return Batch(self.user[rows], self.item[rows], self.labels[rows], *some)

    def put(self, start: int, rows: Batch) -> None:
        """Write `rows` behind row `start`."""
        to = slice(start, start + len(rows.user))
        for mine, values in zip(vars(self).values(), rows, strict=True):
            if mine is not None and values is not None:
                mine[to] = values

    @property
    def sizes(self) -> list[int]:
        """Rows of each row group; in memory there is one."""
        return [len(self)]

    def group(self, number: int) -> Columns:
        """The rows of one row group."""
        return self

    def chunks(self) -> Iterator[Columns]:
        """The rows in order: here all at once, from disk by row group."""
        yield self


class StoredColumns:
    """A split on disk: `Columns` by row group, in the order of the parts.

    Raises DataError when the split is missing, empty, unreadable or not what schema.json says.
    """

    def __init__(
        self, folder: Path, schema: Schema, split: str, context: Sequence[FeatureColumn] = ()
    ) -> None:
        """`context`: the context features to read, categorical or numeric."""
        self.schema, self.context = schema, context
        self._groups = _row_groups(Path(folder) / split)
        self._change: Callable[[Columns, int], Columns] = lambda rows, _: rows
        self.sizes = [rows for *_, rows in self._groups]
        """Rows of each row group."""
        if len(self) != schema.rows.get(split) or len(self) == 0:
            raise DataError(
                f"{folder}/{split} holds {len(self)} rows, schema.json says "
                f"{schema.rows.get(split)}; prepare the data again"
            )

    def __len__(self) -> int:
        return sum(self.sizes)

    def group(self, number: int) -> Columns:
        """The rows of one row group."""
        part, group, _ = self._groups[number]
        features, tasks = (self.schema.user, self.schema.item), self.schema.tasks
        names = [*(one.column for one in features), *(task.column for task in tasks)]
        weight = self.schema.weight
        names += [] if weight is None else [weight]
        names += [one.column for one in self.context]
        with reading(part):
            file = pq.ParquetFile(part)
            missing = [name for name in names if name not in file.schema_arrow.names]
            if missing:
                raise DataError(f"{part}: column {missing[0]!r} is missing; prepare the data again")
            table = file.read_row_group(group, columns=names)
            user, item = (_indices(table[one.column], one.size, part) for one in features)
            labels = torch.full((table.num_rows, len(tasks)), torch.nan)
            for column, task in enumerate(tasks):
                known, values = _labels(table[task.column], kind_of(task), part)
                labels[known, column] = values
            weights = None if weight is None else _weights(table[weight], part)
            columns = [context_values(table[one.column], one, part) for one in self.context]
        context = torch.stack(columns, 1) if columns else None
        return self._change(Columns(user, item, labels, weights, context=context), number)

    def changed(self, change: Callable[[Columns, int], Columns]) -> StoredColumns:
        """The same row groups as `change` makes them, given each with its number."""
        other = copy(self)
        other._change = change
        return other

    def chunks(self) -> Iterator[Columns]:
        """Row group after row group."""
        return map(self.group, range(len(self.sizes)))

    def load(self) -> Columns:
        """All rows in memory."""
        chunks = self.chunks()
        first = next(chunks)
        columns, start = first.room(len(self)), 0
        for chunk in chain([first], chunks):
            columns.put(start, chunk.take(slice(None)))
            start += len(chunk)
        pa.default_memory_pool().release_unused()  # else it keeps what the reader needed
        return columns


Rows = Columns | StoredColumns


def load_columns(
    folder: Path, schema: Schema, split: str, context: Sequence[FeatureColumn] = ()
) -> Columns:
    """A split in memory. Raises DataError as `StoredColumns` does."""
    return StoredColumns(folder, schema, split, context).load()


def _row_groups(folder: Path) -> list[tuple[Path, int, int]]:
    """Part, number in the part, rows of every row group that has any."""
    parts = sorted(folder.glob("*.parquet"))
    if not parts:
        raise DataError(f"{folder} has no Parquet part; prepare the data again")
    groups = []
    for part in parts:
        with reading(part):
            metadata = pq.read_metadata(part)
        sizes = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
        groups += [(part, n, rows) for n, rows in enumerate(sizes) if rows]
    return groups


def _indices(column: pa.ChunkedArray, size: int, part: Path) -> Tensor:
    known, values = known_values(column, pa.int32())
    if not (known.all() and (values >= 0).all() and (values <= size).all()):
        raise DataError(f"{part}: indices must be in 0..{size}; prepare the data again")
    return values.clone()


def _weights(column: pa.ChunkedArray, part: Path) -> Tensor:
    known, values = known_values(column, pa.float32())
    if not (known.all() and values.isfinite().all() and (values >= 0).all()):
        raise DataError(f"{part}: weights must be finite and >= 0; prepare the data again")
    return values.clone()


def _labels(column: pa.ChunkedArray, kind: Kind, part: Path) -> tuple[Tensor, Tensor]:
    known, values = known_values(column, pa.float32())
    if not values.isfinite().all():
        raise DataError(f"{part}: labels must be finite; prepare the data again")
    if kind.invalid(values).any():
        raise DataError(
            f"{part}: labels of {kind.name} tasks must be {kind.rule}; prepare the data again"
        )
    return known, values


def context_values(column: pa.ChunkedArray, feature: FeatureColumn, part: Path) -> Tensor:
    """(N,) float32 as in `Batch.context`. Raises DataError naming the column."""
    known, values = known_values(column, pa.float32())
    is_index = feature.kind == "categorical"
    valid = (values >= 0) & (values <= feature.size) if is_index else values.isfinite()
    if not valid.all():
        rule = f"be in 0..{feature.size}" if is_index else "be finite"
        raise DataError(f"{part}: {feature.column!r} must {rule}; prepare the data again")
    found = torch.full((len(known),), torch.nan)
    found[known] = values
    return found


def known_values(column: pa.ChunkedArray, kind: pa.DataType) -> tuple[Tensor, Tensor]:
    """Which rows have a value, bool (N,), and these values, read-only.

    Not by `to_numpy`, which imports pandas: 45 MB that training has no other use for.
    """
    known = column.is_valid().cast(pa.uint8()).combine_chunks()
    values = column.drop_null().cast(kind).combine_chunks()
    return from_dlpack(known).bool(), from_dlpack(values)


@contextmanager
def reading(part: Path) -> Iterator[None]:
    check_kind(part)
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{part} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
