"""What a model is asked about: one request per row. Axes: B rows, M windows, L events of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Events(NamedTuple):
    """What the users of the rows did before, in windows of their timelines.

    The events of a window lie at its left, by time; what is behind them, if anything, is padding,
    which no earlier place reads. `item`: (M, L) indices, those of unknown items the OOV id.
    `value`: (M, L) float32, a standardised rating, NaN where missing. `time`: (M, L) float64,
    seconds. `window`: (B,), which window a row reads; `place`: (B,), how many of its events lie
    before the row, 0..L.
    """

    item: Tensor
    value: Tensor
    time: Tensor
    window: Tensor
    place: Tensor

    def take(self, rows: Tensor | slice) -> Events:
        """Of some of the rows, with the windows that these read."""
        kept_M, window_B = self.window[rows].unique(return_inverse=True)
        windows = (self.item[kept_M], self.value[kept_M], self.time[kept_M])
        return Events(*windows, window_B, self.place[rows])

    def to(self, device: torch.device) -> Events:
        """On a device."""
        return Events(*(one.to(device) for one in self))


class Standing(Protocol):
    """What is known of items at a time."""

    def at(
        self, item_B: Tensor, time_B: Tensor, given_B: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Age (seconds) and popularity of the items, strictly before the times: see `Moment`."""


class Moment(NamedTuple):
    """When rows ask, and what had happened by then. All (B,) but `items`; NaN: unknown.

    `time`: float64, seconds since 1970 UTC. `last`: float64, when the user's last event before it
    was. `events`: float32, how many the user had, of the last that a model reads. `age`: float32,
    seconds since the first event of the row's item. `popularity`: float32, events of that item over
    those of the mean item, all with a half-life. `items`: tells both of other items. `given`:
    which of the lists of further events that `items` holds belongs to a row; None: there are none.
    """

    time: Tensor
    last: Tensor
    events: Tensor
    age: Tensor
    popularity: Tensor
    items: Standing | None = None
    given: Tensor | None = None

    @classmethod
    def of(cls, time_B: Tensor, events: Events | None, items: Standing | None = None) -> Moment:
        """From the events of rows that share windows only where they read the same."""
        last_B, count_B = torch.full_like(time_B, torch.nan), torch.zeros_like(time_B)
        if events is not None:
            last_B = events.time[events.window, (events.place - 1).clamp(min=0)]
            last_B = torch.where(events.place > 0, last_B, torch.nan)
            count_B = events.place
        return cls.after(time_B, last_B, count_B, items)

    @classmethod
    def after(
        cls, time_B: Tensor, last_B: Tensor, count_B: Tensor, items: Standing | None = None
    ) -> Moment:
        """From the last event and the number of events of rows."""
        unknown_B = torch.full_like(time_B, torch.nan).float()
        count_B = torch.where(time_B.isnan(), torch.nan, count_B.float())
        return cls(time_B, last_B, count_B, unknown_B, unknown_B.clone(), items)

    def about(self, item: Tensor) -> Moment:
        """The same of other items, one a row."""
        if self.items is None:
            return self
        age_B, popularity_B = self.items.at(item, self.time, self.given)
        return self._replace(age=age_B, popularity=popularity_B)

    def without_events(self, gone_B: Tensor) -> Moment:
        """As if the users of some rows had had no event; where no time is known, nothing is."""
        none_B = torch.where(self.time.isnan(), torch.nan, 0.0).to(self.events)
        last_B = self.last.masked_fill(gone_B, torch.nan)
        return self._replace(last=last_B, events=torch.where(gone_B, none_B, self.events))

    def hide(self, lost_B: Tensor) -> None:
        """Forget, in place, when some rows ask."""
        for values_B in (self.time, self.events, self.age, self.popularity):
            values_B[lost_B] = torch.nan

    def each(self, change: Callable[[Tensor], Tensor]) -> Moment:
        """With other columns."""
        who = change(self.time), change(self.last), change(self.events)
        given = None if self.given is None else change(self.given)
        return Moment(*who, change(self.age), change(self.popularity), self.items, given)


class Request(NamedTuple):
    """Rows to score: opaque to callers, read by the encoders of a model.

    `user`, `item`: indices (B,), each in 0..count, where count is the OOV id. With encoders, ~i is
    the OOV id with the features and the bag of i. Further fields are optional and None by default.
    `context`: (B, C) float32, per context feature of the model the index of a category or a
    standardised number, NaN where missing; None: all are missing. `events`: None: no history.
    `moment`: when the rows ask, for models with `model.time_features`; None: unknown.
    `item_vectors`: (M, L, D), of the items of the events; the model fills them in.
    `event_vectors`: (B, D), what the sequence encoder says of the events of each row, where that is
    known already; then it does not read `events`.
    """

    user: Tensor
    item: Tensor
    context: Tensor | None = None
    events: Events | None = None
    item_vectors: Tensor | None = None
    event_vectors: Tensor | None = None
    moment: Moment | None = None

    def to(self, device: torch.device) -> Request:
        """On a device."""
        events = None if self.events is None else self.events.to(device)
        return self._each(lambda one: one.to(device), events)

    def take(self, rows: Tensor | slice) -> Request:
        """Some of the rows."""
        events = None if self.events is None else self.events.take(rows)
        return self._each(lambda one: one[rows], events)

    def _each(self, change: Callable[[Tensor], Tensor], events: Events | None) -> Request:
        context = None if self.context is None else change(self.context)
        known = None if self.event_vectors is None else change(self.event_vectors)
        moment = None if self.moment is None else self.moment.each(change)
        who = change(self.user), change(self.item)
        return Request(*who, context, events, event_vectors=known, moment=moment)

    @property
    def rows(self) -> int:
        """B."""
        return len(self.user)

    def with_items(self, item: Tensor) -> Request:
        """The same users, asked about other items."""
        moment = None if self.moment is None else self.moment.about(item)
        return self._replace(item=item, moment=moment)


def of_users(user_U: Tensor) -> Request:
    """For the vectors of users: no item is asked about."""
    return Request(user_U, torch.zeros_like(user_U))


def of_items(item_N: Tensor) -> Request:
    """For the vectors of items: no user asks."""
    return Request(torch.zeros_like(item_N), item_N)
