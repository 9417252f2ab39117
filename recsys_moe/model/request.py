"""What a model is asked about: one request per row. Axes: B rows, M windows, L events of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

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


class Request(NamedTuple):
    """Rows to score: opaque to callers, read by the encoders of a model.

    `user`, `item`: indices (B,), each in 0..count, where count is the OOV id. With encoders, ~i is
    the OOV id with the features and the bag of i. Further fields are optional and None by default.
    `context`: (B, C) float32, per context feature of the model the index of a category or a
    standardised number, NaN where missing; None: all are missing. `events`: None: no history.
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
        return Request(change(self.user), change(self.item), context, events, event_vectors=known)

    @property
    def rows(self) -> int:
        """B."""
        return len(self.user)

    def with_items(self, item: Tensor) -> Request:
        """The same users, asked about other items."""
        return self._replace(item=item)


def of_users(user_U: Tensor) -> Request:
    """For the vectors of users: no item is asked about."""
    return Request(user_U, torch.zeros_like(user_U))


def of_items(item_N: Tensor) -> Request:
    """For the vectors of items: no user asks."""
    return Request(torch.zeros_like(item_N), item_N)
