"""What a model says of the events of a request's users, with the states of those it knows."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from recsys_moe.inference.events.states import TIME, Entry, History, States
from recsys_moe.inference.events.user_events import Asked, UserEvents, Windows

MOST_STEPS = 16
"""Events of a request that cost less one after the other than with the whole timeline again."""
MOST_ENDS = 100_000
"""Users of whom is known how their stored events end."""


class End(NamedTuple):
    """Of a user's stored events."""

    events: int
    last: int
    """Second of the last one."""
    version: int
    time: float
    """When it was; NaN without one."""


class Said(NamedTuple):
    """Of the events of rows."""

    vector_BD: Tensor
    last_B: Tensor
    """When the last one was, float64 seconds; NaN without one."""
    count_B: Tensor


class UserVectors:
    """`UserEvents` as vectors of the encoder, for requests of a few users."""

    def __init__(self, events: UserEvents, states: States) -> None:
        self._events, self._states = events, states
        self._ends: dict[Hashable, End] = {}

    def vectors(self, windows: Windows) -> Said:
        """What the encoder says, and what it was told."""
        asked = windows.asked
        kept, once, ends = dict[int, History](), dict[int, Sequence[Entry]](), []
        for row, pair in enumerate(zip(asked, self._events.own(asked), strict=True)):
            found, end = self._history(*pair)
            ends.append(end)
            if isinstance(found, History):
                kept[row] = found
            else:
                once[row] = found
        vector_MD = self._states.vectors([*kept.values()])
        if once:
            parts = vector_MD, self._states.without_keeping([*once.values()])
            vector_MD = torch.cat(parts)[torch.tensor([*kept, *once]).argsort(stable=True)]
        end_B2 = torch.tensor(ends, dtype=torch.float64).view(-1, 2)[windows.window_B]
        return Said(vector_MD[windows.window_B], *end_B2.unbind(1))

    def _history(
        self, asked: Asked, own: list[Entry]
    ) -> tuple[History | Sequence[Entry], tuple[float, int]]:
        """With stored events that its own follow; else all events. Time of the last event, and how
        many there are."""
        if asked.before < math.inf:
            past = self._events.joined(asked)
            return past if past else History([]), _end_of(past)
        user: Hashable = asked.name or asked.user
        end = self._end(user, asked)
        more = sorted(own, key=TIME)
        left_out = max(0, end.events + len(more) - self._events.length)
        are_few = len(more) <= MOST_STEPS and left_out <= end.events
        # Of the same second as a stored event it may be the same event.
        if not are_few or (more and math.floor(more[0].time) <= end.last):
            past = self._events.joined(asked)
            return past, _end_of(past)
        count = end.events + len(more) - left_out
        ends = more[-1].time if more else end.time, count
        if left_out == end.events:
            return History(more), ends
        before = partial(self._before, asked._replace(own=()), left_out)
        return History(more, (user, left_out), asked.line.version, before), ends

    def _before(self, asked: Asked, left_out: int) -> Sequence[Entry]:
        return self._events.joined(asked)[left_out:]

    def _end(self, user: Hashable, asked: Asked) -> End:
        found, version = self._ends.get(user), asked.line.version
        if found is None or found.version != version:
            stored = self._events.joined(asked._replace(own=()))
            last = math.floor(stored[-1].time) if stored else 0
            found = End(len(stored), last, version, _end_of(stored)[0])
            if len(self._ends) >= MOST_ENDS:
                self._ends.clear()
            self._ends[user] = found
        return found


def _end_of(events: Sequence[Entry]) -> tuple[float, int]:
    return events[-1].time if events else math.nan, len(events)
