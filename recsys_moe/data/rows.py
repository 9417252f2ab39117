"""Rows in memory, and batches of them.

Axes: B batch, T tasks, N rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from recsys_moe.data.events import EventLog
from recsys_moe.data.item_past import ItemPast
from recsys_moe.model.request import Events, Moment, Request

TieRule = Literal["strict", "log"]


class Timelines(NamedTuple):
    """What the histories of rows are read from, and how many events of each at most."""

    log: EventLog
    length: int
    step: int = 1
    """Of windows, see `EventLog.windows`."""
    has_windows: bool = True
    """Do models read the events themselves?"""
    has_moments: bool = False
    """Do models read when rows ask?"""
    items: ItemPast | None = None
    """Age and popularity of items, for models that read these."""

    def events(
        self, span_B2: Tensor, *, shared: bool = False, is_whole: bool = False
    ) -> Events | None:
        """What models read of the events before rows. `shared`: see `EventLog.windows`. `is_whole`:
        the last `length` events of each, whatever the step."""
        if not self.has_windows:
            return None
        step = 1 if is_whole else self.step
        return self.log.windows(span_B2, self.length, step=step, shared=shared)

    def moment(self, span_B2: Tensor, time_B: Tensor) -> Moment:
        """When rows ask, and what their users had done by then."""
        first_B, end_B = span_B2.long().unbind(1)
        count_B = end_B - first_B
        unknown_B = torch.full((len(time_B),), torch.nan)
        last_B = unknown_B.double()
        if len(self.log):
            last_B = self.log.time_P[(end_B - 1).clamp(min=0)].double()
            last_B = torch.where(count_B > 0, last_B, torch.nan)
        count_B = count_B.clamp(max=self.length).float()
        return Moment(time_B.clone(), last_B, count_B, unknown_B, unknown_B.clone(), self.items)


class History(NamedTuple):
    """What rows are to see of the past."""

    timelines: Timelines
    ties: TieRule
    """`strict`: nothing of the same second; `log`: what the log has before."""

    def told(self, rows: Columns, event_N: Tensor, time_N: Tensor) -> Columns:
        """Rows with the span of what lies before each."""
        log = self.timelines.log
        if self.ties == "log":
            span_N2 = log.span(rows.user, event_N)
        else:
            span_N2 = log.span_before(rows.user, time_N)
        return replace(rows, history=span_N2, timelines=self.timelines, time=time_N.double())


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
    events: Events | None = None
    moment: Moment | None = None

    @property
    def request(self) -> Request:
        """What a model is asked about these rows."""
        return Request(self.user, self.item, self.context, self.events, moment=self.moment)

    def without_events(self, gone_B: Tensor) -> Batch:
        """As if the users of some rows had done nothing before."""
        events, moment = self.events, self.moment
        if events is not None:
            events = events._replace(place=events.place.masked_fill(gone_B, 0))
        if moment is not None:
            moment = moment.without_events(gone_B)
        return self._replace(events=events, moment=moment)


@dataclass(frozen=True)
class Columns:
    """Rows as tensors with the layout of `Batch`, and `history` (N, 2) instead of its events: what
    `EventLog.span` tells of each row; None for a model that reads none."""

    user: Tensor
    item: Tensor
    labels: Tensor
    weight: Tensor | None = None
    offset: Tensor | None = None
    context: Tensor | None = None
    history: Tensor | None = None
    timelines: Timelines | None = None
    """Where the events of `history` are; the same for all rows."""
    time: Tensor | None = None
    """Seconds since 1970, for models that read when rows ask. (N,) float64"""

    @property
    def request(self) -> Request:
        """What a model is asked about these rows."""
        return self.take(slice(None)).request

    def room(self, rows: int) -> Columns:
        """For `rows` rows like these, with no values yet."""
        return self._each(lambda one: one.new_empty(rows, *one.shape[1:]))

    def __len__(self) -> int:
        return len(self.user)

    def take(self, rows: Tensor | slice, *, shared: bool = False) -> Batch:
        """A batch of some rows. `shared`: see `EventLog.windows`."""
        part = self.part(rows)
        events = None
        if part.timelines is not None and part.history is not None:
            events = part.timelines.events(part.history, shared=shared)
        columns = (part.user, part.item, part.labels, part.weight, part.offset, part.context)
        return Batch(*columns, events, part.moment())

    def moment(self) -> Moment | None:
        """When the rows ask; None for models that do not read it."""
        if self.timelines is None or self.history is None or self.time is None:
            return None
        if not self.timelines.has_moments:
            return None
        moment = self.timelines.moment(self.history, self.time).about(self.item)
        return moment._replace(items=None)

    def part(self, rows: Tensor | slice) -> Columns:
        """Some rows."""
        return self._each(lambda one: one[rows])

    def _each(self, change: Callable[[Tensor], Tensor]) -> Columns:
        columns: dict[str, Any] = vars(self)
        made = {name: change(one) for name, one in columns.items() if isinstance(one, Tensor)}
        return Columns(**{**columns, **made})

    def put(self, start: int, rows: Columns) -> None:
        """Write `rows` behind row `start`."""
        to = slice(start, start + len(rows))
        for mine, values in zip(vars(self).values(), vars(rows).values(), strict=True):
            if isinstance(mine, Tensor) and values is not None:
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


def joined(parts: Sequence[Columns]) -> Columns:
    """The rows of all parts, at least one, one after the other."""
    whole, place = parts[0].room(sum(map(len, parts))), 0
    for part in parts:
        whole.put(place, part)
        place += len(part)
    return whole
