"""Who did what when: the one place that says what lies before a row.

Axes: U users, P events, B rows, M windows, L events of a window.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor

from recsys_moe.model.request import Events


class TimedRows(NamedTuple):
    """Rows with what orders them: index of user and item, label or NaN, seconds, and the place in
    the user's timeline. Each (N,)."""

    user: Tensor
    item: Tensor
    value: Tensor
    time: Tensor
    event: Tensor


class EventLog:
    """The events of all users, user after user, each by time and then as in the log.

    `span` tells of a row which events lie strictly before it: from where its user's begin to where
    its own time does. Whatever happened then or later is never read.
    """

    def __init__(self, rows: TimedRows, num_users: int) -> None:
        """`rows`: the events, in any order; those of users beyond `num_users` are left out."""
        kept_N = rows.user < num_users
        rows = TimedRows(*(column[kept_N] for column in rows))
        self.places = int(rows.event.max()) + 2 if len(rows.event) else 1
        key_P, order_P = (rows.user.long() * self.places + rows.event).sort(stable=True)
        self.key_P = key_P
        self.item_P, self.value_P, self.time_P = (column[order_P] for column in rows[1:4])
        self.user_P = rows.user[order_P].long()
        counts_U = torch.bincount(self.user_P, minlength=num_users + 1)
        self.first_U = torch.cat([counts_U.new_zeros(1), counts_U.cumsum(0)])
        self.num_users = num_users
        self.moved_P: Tensor | None = None
        """Where each event has moved to, of a shuffled log."""

    @classmethod
    def of(cls, parts: Iterable[TimedRows], num_users: int) -> EventLog:
        """From the rows of several splits."""
        columns = zip(*parts, strict=True)
        return cls(TimedRows(*(torch.cat(column) for column in columns)), num_users)

    def shuffled(self, seed: int) -> EventLog:
        """The same events, those of a user's one second in random order, and rows with them."""
        other, places = copy(self), len(self)
        is_new_P = torch.ones(places, dtype=torch.bool)
        is_new_P[1:] = (self.user_P.diff() != 0) | (self.time_P.diff() != 0)
        drawn_P = torch.rand(places, generator=torch.Generator().manual_seed(seed)).double()
        order_P = (is_new_P.cumsum(0) + drawn_P).argsort(stable=True)
        other.item_P, other.value_P = self.item_P[order_P], self.value_P[order_P]
        other.moved_P = torch.empty_like(order_P).scatter_(0, order_P, torch.arange(places))
        return other

    def __len__(self) -> int:
        return len(self.item_P)

    def span(self, user_B: Tensor, event_B: Tensor) -> Tensor:
        """(B, 2): first and end of the events before the place `event_B` of the user's timeline.

        Equal times are told apart by the order of the log. Unknown users have no events.
        """
        user_B = user_B.long()
        key_B = user_B * self.places + event_B.clamp(max=self.places - 1)
        end_B = torch.searchsorted(self.key_P, key_B)
        if self.moved_P is not None and len(self):
            place_B = end_B.clamp(max=len(self) - 1)
            is_event_B = (
                self.key_P[place_B] == key_B
            )  # other rows come before those of their second
            end_B = torch.where(is_event_B, self.moved_P[place_B], end_B)
        return self._span(user_B, end_B)

    def span_before(self, user_B: Tensor, time_B: Tensor) -> Tensor:
        """(B, 2): the same for what is strictly before `time_B`: rows of one time do not see each
        other."""
        user_B = user_B.long()
        if not len(self):
            return self._span(user_B, torch.zeros_like(user_B))
        low, high = int(self.time_P.min()), int(self.time_P.max())
        width = high - low + 2
        key_P = self.user_P * width + (self.time_P - low)
        key_B = user_B * width + (time_B.long() - low).clamp(0, width - 1)
        return self._span(user_B, torch.searchsorted(key_P, key_B))

    def _span(self, user_B: Tensor, end_B: Tensor) -> Tensor:
        first_B = self.first_U[user_B.clamp(max=self.num_users)]
        is_known_B = user_B < self.num_users
        return torch.stack([first_B, torch.where(is_known_B, end_B, first_B)], 1).int()

    def whole(self, user_B: Tensor) -> Tensor:
        """(B, 2): all events of the users; none of unknown and of hidden ones (~i)."""
        user_B = user_B.long()
        user_B = torch.where(user_B < 0, self.num_users, user_B).clamp(max=self.num_users)
        return torch.stack([self.first_U[user_B], self.first_U[user_B + 1]], 1).int()

    def windows(
        self, span_B2: Tensor, length: int, *, step: int = 1, shared: bool = False
    ) -> Events:
        """The last `length` events of each span; rows whose windows begin at the same event share
        one, so that an encoder runs once for many rows.

        `step`: windows begin at every step-th event of a user, so that of longer histories a row
        sees at least length - step + 1 events. `shared`, for training: windows of `length` events
        end where a span does, and early places of one see less.
        """
        first_B, end_B = span_B2.long().unbind(1)
        more_B = (end_B - first_B - length).clamp(min=0)
        begin_B, stop_B = first_B - (-more_B // step) * step, end_B
        if shared:
            user_V, user_B = first_B.unique(return_inverse=True)
            last_V = torch.zeros_like(user_V).scatter_reduce(0, user_B, end_B, "amax")
            last_B = last_V[user_B]
            stop_B = last_B - (last_B - end_B) // length * length
            begin_B = torch.maximum(first_B, stop_B - length)
        start_M, window_B = begin_B.unique(return_inverse=True)
        stop_M = start_M.scatter_reduce(0, window_B, stop_B, "amax")
        width = max(1, int((stop_M - start_M).max())) if len(start_M) else 1
        place_ML = start_M[:, None] + torch.arange(width)
        place_ML = place_ML.minimum(stop_M[:, None] - 1).clamp(min=0)
        columns = [self.item_P, self.value_P, self.time_P]
        if not len(self):
            columns = [column_P.new_zeros(1) for column_P in columns]
        item_ML, value_ML, time_ML = (column_P[place_ML] for column_P in columns)
        windows = item_ML.long(), value_ML, time_ML.double()
        return Events(*windows, window_B, end_B - start_M[window_B])


def window_order(span_N2: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """A random order of rows in which those of one stretch of `length` events of a user are
    together. Where a user's stretches begin is random too. (N,)"""
    first_N, end_N = span_N2.long().unbind(1)
    user_V, user_N = first_N.unique(return_inverse=True)
    shift_V = torch.randint(length, (len(user_V),), generator=generator)
    stretch_N = (end_N - first_N + shift_V[user_N]) // length
    key_N = user_N * (int(stretch_N.max()) + 1) + stretch_N
    stretches, stretch_N = key_N.unique(return_inverse=True)
    rank_S = torch.randperm(len(stretches), generator=generator)
    return rank_S[stretch_N].argsort(stable=True)
