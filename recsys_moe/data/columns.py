"""Prepared Parquet -> contiguous columns.

Axes: B batch, T tasks, N rows. What does not fit in memory stays a `StoredColumns`, which
`recsys_moe.data.streaming` reads by row group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from recsys_moe.data.rows import Columns, History
from recsys_moe.files import check_kind
from recsys_moe.kinds import Kind, kind_of
from recsys_moe.schema import EVENT, TIME, DataError, FeatureColumn, Schema


class StoredColumns:
    """A split on disk: `Columns` by row group, in the order of the parts.

    Raises DataError when the split is missing, empty, unreadable or not what schema.json says.
    """

    def __init__(
        self,
        folder: Path,
        schema: Schema,
        split: str,
        context: Sequence[FeatureColumn] = (),
        history: History | None = None,
    ) -> None:
        """`context`: the context features to read, categorical or numeric. `history`: the events
        that rows are to see."""
        self.schema, self.context, self.history = schema, context, history
        ids = schema.user, schema.item
        # Training rows have ids of the vocabulary, or the OOV id.
        self._most = [one.trained if split == "train" else one.size for one in ids]
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
        with reading_parquet(part):
            file = pq.ParquetFile(part)
            missing = [name for name in names if name not in file.schema_arrow.names]
            if missing:
                raise DataError(f"{part}: column {missing[0]!r} is missing; prepare the data again")
            table = file.read_row_group(group, columns=names)
            user, item = (
                _indices(table[one.column], most, part)
                for one, most in zip(features, self._most, strict=True)
            )
            labels = torch.full((table.num_rows, len(tasks)), torch.nan)
            for column, task in enumerate(tasks):
                known, values = _labels(table[task.column], kind_of(task), part)
                labels[known, column] = values
            weights = None if weight is None else _weights(table[weight], part)
            columns = [context_values(table[one.column], one, part) for one in self.context]
        context = torch.stack(columns, 1) if columns else None
        rows = Columns(user, item, labels, weights, context=context)
        if self.history is not None:
            rows = self.history.told(rows, *self.times(number))
        return self._change(rows, number)

    def times(self, number: int) -> tuple[Tensor, Tensor]:
        """Of the rows of one row group: the place in the timeline of the user and the seconds.
        (N,) int64"""
        part, group, _ = self._groups[number]
        with reading_parquet(part):
            table = pq.ParquetFile(part).read_row_group(group, columns=[EVENT, TIME])
            (known_N, event_N), (timed_N, time_N) = (
                known_values(table[name], pa.int64()) for name in (EVENT, TIME)
            )
        if not (known_N.all() and timed_N.all()):
            raise DataError(f"{part}: {EVENT} and {TIME} must not be null; prepare the data again")
        return event_N.clone(), time_N.clone()

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
            columns.put(start, chunk)
            start += len(chunk)
        pa.default_memory_pool().release_unused()  # else it keeps what the reader needed
        return columns


Rows = Columns | StoredColumns


def load_columns(
    folder: Path, schema: Schema, split: str, context: Sequence[FeatureColumn] = ()
) -> Columns:
    """A split in memory, without histories. Raises DataError as `StoredColumns` does."""
    return StoredColumns(folder, schema, split, context).load()


def _row_groups(folder: Path) -> list[tuple[Path, int, int]]:
    """Part, number in the part, rows of every row group that has any."""
    parts = sorted(folder.glob("*.parquet"))
    if not parts:
        raise DataError(f"{folder} has no Parquet part; prepare the data again")
    groups = []
    for part in parts:
        with reading_parquet(part):
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
def reading_parquet(part: Path) -> Iterator[None]:
    check_kind(part)
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{part} cannot be read as Parquet: {str(error).splitlines()[0]}") from None
