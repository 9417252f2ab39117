"""Prepared rows -> batches by whole-batch index slicing.

There is no per-row access and no worker process: a batch of 512 is three index operations, well
under a hundredth of a training step. Axes: B batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from recsys_moe.data.columns import Rows
from recsys_moe.data.events import window_order
from recsys_moe.data.rows import Batch, Columns
from recsys_moe.schema import DataError, Schema


@dataclass(eq=False)
class ShuffledBatches(ABC):
    """One epoch of training batches in an order that depends on the seed only.

    Of `world` processes this is `rank`, with batches of `batch_size` rows each. `id_dropout`: share
    of users and of items replaced by the OOV id, which trains its embedding; with `ids_only` every
    second one is ~index instead, the OOV id with the features and the bag of that index.
    `features_only`: shares of users and of items replaced by ~index in addition. `context_dropout`:
    share of rows that lose context, half of them all, the others each value with probability 1/2;
    and of those that lose their time. `events_dropout`: share of those that lose all events.
    `start`: leave out that many batches, and change no other; `len` counts them. Raises DataError
    when there are fewer rows than processes.
    """

    rows: Rows
    schema: Schema
    batch_size: int
    _: KW_ONLY
    id_dropout: float
    ids_only: bool = False
    features_only: tuple[float, float] = (0.0, 0.0)
    context_dropout: float = 0.0
    events_dropout: float = 0.0
    seed: int
    rank: int = 0
    world: int = 1
    start: int = 0

    def __post_init__(self) -> None:
        self.batches = batches_per_epoch(len(self.rows), self.batch_size, self.world)
        sizes = self.schema.user.size, self.schema.item.size
        lost = self.context_dropout, self.events_dropout
        self.hiding = Hiding(self.id_dropout, *sizes, self.ids_only, self.features_only, *lost)

    def __len__(self) -> int:
        return self.batches

    @abstractmethod
    def __iter__(self) -> Iterator[Batch]: ...


class TrainBatches(ShuffledBatches):
    """Batches from memory.

    Every process takes its share of every global batch of `world` x `batch_size` rows; one process
    with batches of that size does the same steps. The last, partial batch is kept and shared out
    as evenly as it goes.
    """

    rows: Columns

    def __iter__(self) -> Iterator[Batch]:
        bounds = batch_bounds(len(self.rows), self.batch_size * self.world, self.batches)
        share = (self.rank, self.world)
        return shuffled(self.rows, bounds, self.hiding, self.seed, share=share, start=self.start)


class Hiding(NamedTuple):
    """How ids and contexts are hidden: the rate of id dropout, the OOV indices of users and items,
    and the others as in `ShuffledBatches`."""

    rate: float
    user: int
    item: int
    ids_only: bool
    features_only: tuple[float, float]
    context: float = 0.0
    events: float = 0.0


def batches_per_epoch(rows: int, batch_size: int, world: int) -> int:
    """Batches of every process: of a last batch of fewer rows than processes some have none.

    Raises DataError when there are fewer rows than processes.
    """
    if rows < world:
        raise DataError(f"training has {rows} rows for {world} devices; use at most {rows}")
    return -(-rows // (batch_size * world))


def batch_bounds(rows: int, size: int, batches: int) -> list[tuple[int, int]]:
    """First and last row of `batches` batches of `size`; the last one has whatever is left."""
    return [(n * size, rows if n == batches - 1 else (n + 1) * size) for n in range(batches)]


def part_bounds(start: int, stop: int, rank: int, world: int) -> tuple[int, int]:
    """Part `rank` of start..stop cut into `world` parts that differ by one row at most."""
    rows = stop - start
    return start + rows * rank // world, start + rows * (rank + 1) // world


def shuffled(
    columns: Columns,
    bounds: Iterable[tuple[int, int]],
    hiding: Hiding,
    seed: int,
    *,
    share: tuple[int, int] = (0, 1),
    start: int = 0,
) -> Iterator[Batch]:
    """Batches from `bounds`, in a random order of the rows; of each the part `share` (which, of).

    The first `start` are drawn and not taken, so that those behind them stay what they are.
    """
    generator = torch.Generator().manual_seed(seed)
    order = _order(columns, generator)
    for number, (first, stop) in enumerate(bounds):
        rates = (hiding.rate, hiding.rate, *hiding.features_only)
        drawn = [_drawn(stop - first, rate, generator) for rate in rates]
        lost_BC = _lost(columns, stop - first, hiding.context, generator)
        reads_time = columns.timelines is not None and columns.timelines.has_moments
        timeless = hiding.context if reads_time else 0.0
        timeless_B = _drawn(stop - first, timeless, generator)
        eventless = 0.0 if columns.history is None else hiding.events
        eventless_B = _drawn(stop - first, eventless, generator)
        if number < start:
            continue
        part = slice(*part_bounds(0, stop - first, *share))
        batch = columns.take(order[first:stop][part], shared=True)
        _hide_ids(batch, hiding, drawn, part)
        if batch.context is not None and lost_BC is not None:
            batch.context[lost_BC[part]] = torch.nan
        if batch.moment is not None and timeless_B is not None:
            batch.moment.hide(timeless_B[part])
        yield batch if eventless_B is None else batch.without_events(eventless_B[part])


def _hide_ids(batch: Batch, hiding: Hiding, drawn: Sequence[Tensor | None], part: slice) -> None:
    """`drawn`: rows whose user is hidden, whose item is, then those that keep features alone."""
    for index_B, one, hidden_B in zip(batch[:2], hiding[1:3], drawn[:2], strict=True):
        if hidden_B is None:
            continue
        if hiding.ids_only:
            keeps_B = (torch.arange(len(hidden_B)) % 2 == 0) & hidden_B
            index_B.copy_(torch.where(keeps_B[part], ~index_B, index_B))
            hidden_B &= ~keeps_B
        index_B.masked_fill_(hidden_B[part], one)
    for index_B, one, alone_B in zip(batch[:2], hiding[1:3], drawn[2:], strict=True):
        if alone_B is not None:
            shown_B = alone_B[part] & (index_B >= 0) & (index_B != one)
            index_B.copy_(torch.where(shown_B, ~index_B, index_B))


def _order(columns: Columns, generator: torch.Generator) -> Tensor:
    """A random order of rows; with histories one of stretches of timelines."""
    if columns.history is None or columns.timelines is None or not len(columns):
        return torch.randperm(len(columns), generator=generator)
    return window_order(columns.history, columns.timelines.length, generator)


def _drawn(rows: int, rate: float, generator: torch.Generator) -> Tensor | None:
    """A random share of the rows of a batch; a rate of 0 draws no random numbers."""
    return torch.rand(rows, generator=generator) < rate if rate else None


def _lost(columns: Columns, rows: int, rate: float, generator: torch.Generator) -> Tensor | None:
    """Which values of the context are lost: see `ShuffledBatches`. (B, C)"""
    if columns.context is None or not rate:
        return None
    drawn_BC = torch.rand(rows, 1 + columns.context.shape[1], generator=generator)
    row_B1, alone_BC = drawn_BC[:, :1], drawn_BC[:, 1:] < 0.5
    return (row_B1 < rate / 2) | ((row_B1 < rate) & alone_BC)


class EvalBatches:
    """The rows of a split in order, from memory or with one row group in memory.

    Of `world` processes each has a range of whole batches, as many as the others or one more.
    Rows of a single row group, hence all rows in memory, are not copied.
    """

    def __init__(
        self,
        rows: Rows,
        batch_size: int,
        *,
        by_user: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        """`by_user`: rows of a row group that read events come user after user, so that those of a
        batch share windows."""
        self.rows = rows
        self.batch_size, self.by_user = batch_size, by_user
        self.bounds = part_bounds(0, -(-len(rows) // batch_size), rank, world)

    def __len__(self) -> int:
        return self.bounds[1] - self.bounds[0]

    def __iter__(self) -> Iterator[Batch]:
        pieces = [Piece(group, 0, rows) for group, rows in enumerate(self.rows.sizes)]
        read = lru_cache(1)(self._by_timeline if self.by_user else self.rows.group)
        for batch in range(*self.bounds):
            start = batch * self.batch_size
            yield gathered(cut(pieces, start, start + self.batch_size), read).take(slice(None))

    def _by_timeline(self, number: int) -> Columns:
        rows = self.rows.group(number)
        if rows.history is None:
            return rows
        end_N = rows.history[:, 1].argsort(stable=True)
        return rows.part(end_N[rows.history[end_N, 0].argsort(stable=True)])


class Piece(NamedTuple):
    """Rows start..stop of a row group."""

    group: int
    start: int
    stop: int


def cut(pieces: Iterable[Piece], start: int, stop: int) -> list[Piece]:
    """Rows start..stop of the sequence that `pieces` make."""
    chosen, place = [], 0
    for group, first, last in pieces:
        low, high = max(start - place, 0), min(stop - place, last - first)
        if low < high:
            chosen.append(Piece(group, first + low, first + high))
        place += last - first
    return chosen


def gathered(pieces: Sequence[Piece], read: Callable[[int], Columns]) -> Columns:
    """The rows of `pieces`, at least one, in their order, from row groups that `read` gives.

    Of several row groups one at a time is in memory, plus the result.
    """
    group, start, stop = pieces[0]
    if len(pieces) == 1:
        return read(group).part(slice(start, stop))
    rows, like = sum(p.stop - p.start for p in pieces), read(group)
    columns, place = like.room(rows), 0
    for group, start, stop in pieces:
        columns.put(place, read(group).part(slice(start, stop)))
        place += stop - start
    return columns
