"""Stream rows from disk: batches through a shuffle buffer, counts and lists by row group.

In memory at once: the rows of a window with their places in its order (`row_bytes` each), and one
row group. Axes: B batch, T tasks, U users, N rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from recsys_moe.data.batches import (
    Piece,
    ShuffledBatches,
    batch_bounds,
    cut,
    gathered,
    part_bounds,
    shuffled,
)
from recsys_moe.data.columns import Rows, StoredColumns
from recsys_moe.data.rows import Batch, History
from recsys_moe.kinds import Labelled, positive_task
from recsys_moe.schema import FeatureColumn, Schema
from recsys_moe.seeds import stream_seed

SORTED_AT_ONCE = 1 << 20
ITEM_ROWS = "item_rows"
"""In seen.safetensors with data.list_prior: training rows by item."""
NO_ROWS = Piece(0, 0, 0)
"""Part of a process in a last batch with fewer rows than processes."""


def row_bytes(schema: Schema, *, shifted: bool = False, context: int = 0) -> int:
    """Memory of a training row: two int32 indices, an int64 place in the order, float32 labels,
    weight and `context` numbers; `shifted`: an offset for each label too."""
    labels = len(schema.tasks) * (2 if shifted else 1)
    return 4 * (2 + labels + (schema.weight is not None) + context) + 8


def rows_within(schema: Schema, megabytes: int, *, shifted: bool = False, context: int = 0) -> int:
    """How many rows fit in `megabytes` of 2**20 bytes."""
    return megabytes * 2**20 // row_bytes(schema, shifted=shifted, context=context)


def open_rows(
    folder: Path,
    schema: Schema,
    split: str,
    most: int,
    *,
    context: Sequence[FeatureColumn] = (),
    history: History | None = None,
) -> Rows:
    """A split: in memory when it has at most `most` rows, else on disk. Raises DataError."""
    stored = StoredColumns(folder, schema, split, context, history)
    return stored.load() if len(stored) <= most else stored


@dataclass(eq=False)
class StreamBatches(ShuffledBatches):
    """Batches from disk, with a shuffle in two steps.

    The row groups come in a random order. Of the rows in that order every process takes one
    contiguous range, with as many rows as its share of TrainBatches, and reads them in windows of
    `window` rows (whole batches), each shuffled within itself. All of it depends on (seed, rank,
    world) alone, so that `start` skips windows without reading them.
    """

    rows: StoredColumns
    _: KW_ONLY
    window: int
    """Rows that are shuffled together; at least one batch."""

    def __iter__(self) -> Iterator[Batch]:
        window = max(1, self.window // self.batch_size)  # in batches
        first, stop = self._range()
        bounds = batch_bounds(stop - first, self.batch_size, self.batches)
        read = lru_cache(1)(self.rows.group)  # two windows often share a row group
        pieces = self._pieces()
        for number in range(self.start // window, -(-self.batches // window)):
            mine = bounds[number * window : (number + 1) * window]
            begin, end = mine[0][0], mine[-1][1]
            yield from shuffled(
                gathered(cut(pieces, first + begin, first + end) or [NO_ROWS], read),
                [(a - begin, b - begin) for a, b in mine],
                self.hiding,
                stream_seed(self.seed, "window", self.rank, number),
                start=self.start - number * window,
            )

    def _range(self) -> tuple[int, int]:
        """The rows of this process in the epoch's order: its full batches and its last one."""
        full = (self.batches - 1) * self.batch_size
        left = (0, len(self.rows) - full * self.world)
        first, stop = part_bounds(*left, self.rank, self.world)
        return full * self.rank + first, full * (self.rank + 1) + stop

    def _pieces(self) -> list[Piece]:
        """All row groups in the epoch's order, the same for every process."""
        generator = torch.Generator().manual_seed(stream_seed(self.seed, "groups"))
        order = torch.randperm(len(self.rows.sizes), generator=generator).tolist()
        return [Piece(group, 0, self.rows.sizes[group]) for group in order]


def user_counts(rows: Rows, schema: Schema) -> Tensor:
    """Training rows of each user in the vocabulary (U,) int64."""
    return _counts((chunk.user for chunk in rows.chunks()), schema.user.trained)


def _counts(users: Iterable[Tensor], size: int) -> Tensor:
    counts_U = torch.zeros(size + 1, dtype=torch.int64)
    for user_N in users:
        counts_U += torch.bincount(user_N, minlength=size + 1)
    return counts_U[:size]


def trained_ids(rows: Rows, schema: Schema) -> tuple[Tensor, Tensor]:
    """bool (U,) and (I,): the id is in one of the training `rows`."""
    user_U = torch.zeros(schema.user.size + 1, dtype=torch.bool)
    item_I = torch.zeros(schema.item.size + 1, dtype=torch.bool)
    for chunk in rows.chunks():
        user_U[chunk.user.long()] = True
        item_I[chunk.item.long()] = True
    return user_U[:-1], item_I[:-1]


def labelled(rows: Rows, task: int) -> Iterator[Labelled]:
    """The rows with a label of `task`, by chunk; where the data have no weights these are 1."""
    for chunk in rows.chunks():
        known_N = ~chunk.labels[:, task].isnan()
        label_N = chunk.labels[known_N, task].double()
        weight = chunk.weight
        weight_N = torch.ones_like(label_N) if weight is None else weight[known_N].double()
        yield Labelled(chunk.user[known_N].long(), chunk.item[known_N].long(), label_N, weight_N)


def positive_items(rows: Rows, schema: Schema) -> dict[str, Tensor]:
    """Positives of each user in the training rows, as offsets and item indices.

    Positive: label 1 of the first task that has positives; every row where there is no such task.
    Two passes: how many items each user has, then each item to its place.
    """
    counts_U = _counts((user_N for user_N, _ in _positives(rows, schema)), schema.user.size)
    offsets = torch.cat([counts_U.new_zeros(1), counts_U.cumsum(0)])
    items = torch.empty(int(offsets[-1]), dtype=torch.int32)
    free_U = offsets[:-1].clone()
    for user_N, item_N in _positives(rows, schema):
        user_N, order = user_N.sort(stable=True)
        here_U = torch.bincount(user_N, minlength=schema.user.size)
        first_U = here_U.cumsum(0) - here_U
        items[free_U[user_N] + torch.arange(len(user_N)) - first_U[user_N]] = item_N[order]
        free_U += here_U
    _sort_within_users(items, offsets, schema.item.size)
    return {"offsets": offsets, "items": items}


def item_rows(rows: Rows, schema: Schema) -> dict[str, Tensor]:
    """Rows of each item of the catalogue, int32 (N,), as in the files of a model."""
    return {
        ITEM_ROWS: _counts((chunk.item.long() for chunk in rows.chunks()), schema.item.size).int()
    }


def _positives(rows: Rows, schema: Schema) -> Iterator[tuple[Tensor, Tensor]]:
    """User (int64) and item of the positives of known users, by chunk."""
    positive = positive_task(schema.tasks)
    for chunk in rows.chunks():
        mask_N = chunk.user < schema.user.size
        if positive is not None:
            mask_N &= chunk.labels[:, positive] == 1
        yield chunk.user[mask_N].long(), chunk.item[mask_N]


def _sort_within_users(items: Tensor, offsets: Tensor, size: int) -> None:
    """Ascending items for each user, in place, for blocks of users."""
    first = 0
    while first < len(offsets) - 1:
        most = offsets[first] + SORTED_AT_ONCE
        stop = max(first + 1, int(torch.searchsorted(offsets, most, right=True)) - 1)
        counts = offsets[first : stop + 1].diff()
        block = slice(int(offsets[first]), int(offsets[stop]))
        keys = torch.repeat_interleave(counts) * (size + 1) + items[block]
        items[block] = (keys.sort().values % (size + 1)).int()
        first = stop
