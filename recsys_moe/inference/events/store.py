"""The last events of each user, in memory.

A timeline is replaced, never changed: a reader needs no lock and keeps what it has read.
"""

from __future__ import annotations

import hashlib
import math
import sys
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from recsys_moe.errors import ConfigError
from recsys_moe.inference.events.observed import Event

TOLERANCE = 3600.0
MAX_USERS = 100_000


class Timeline(NamedTuple):
    """The last events of a user, by time; those of equal times in the order they arrived.

    32 bytes an event, and the text of each item once.
    """

    item: tuple[str, ...] = ()
    """Raw ids."""
    value: array[float] = array("d")
    """NaN: not rated."""
    time: array[float] = array("d")
    """Seconds since 1970."""
    keys: array[int] = array("Q")
    """What a second delivery is known by."""
    gone: array[int] = array("Q")
    """The same of the last events that made room for later ones."""


class Rejected(NamedTuple):
    """An event that was not stored."""

    row: int
    """Its place in the list, from 0."""
    reason: str


@dataclass
class Observed:
    """What became of a list of events."""

    stored: int = 0
    duplicates: int = 0
    """Delivered before: nothing changed."""
    rejected: list[Rejected] = field(default_factory=list)


class Sink(Protocol):
    """Where stored events are kept beyond the process."""

    def append(self, events: Sequence[Event]) -> None: ...


class EventStore:
    """Bounded: `length` events a user, `max_users` users. Safe to use from several threads.

    Beyond `max_users` the user whose last event arrived first is evicted, with all events. An event
    is rejected when its time is more than `tolerance` seconds before the newest of its user, or
    after the present by `clock`, or before the `length` events that are kept. Within the tolerance
    the order of arrival does not matter, but for events of equal times, which keep it.

    An event is known again while it is kept and until `length` further events of the user have
    made room.
    """

    def __init__(
        self,
        length: int,
        *,
        max_users: int = MAX_USERS,
        tolerance: float = TOLERANCE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises ConfigError for a bound below 1 or a negative tolerance."""
        if max_users < 1:
            raise ConfigError(f"users with events must be at least 1, got {max_users}")
        if not 0 <= tolerance < math.inf:
            raise ConfigError(f"the tolerance of events must be at least 0 s, got {tolerance:g}")
        self.length, self.max_users, self.tolerance = length, max_users, tolerance
        self.sink: Sink | None = None
        self._clock, self._lock = clock, threading.Lock()
        self._users: dict[str, Timeline] = {}

    def __len__(self) -> int:
        """Users with events."""
        return len(self._users)

    def of(self, user: str) -> Timeline:
        """The events of a user by raw id as text (`raw_ids.of_value`); empty without any."""
        return self._users.get(user, EMPTY)

    def append(
        self, events: Sequence[Event], newest: Callable[[str], float] = lambda user: -math.inf
    ) -> Observed:
        """Store checked events (`read_events`); first in the sink, where there is one.

        `newest`: the time of the last event of a user that is known from elsewhere. Where the sink
        raises, nothing is stored.
        """
        with self._lock:
            changed: dict[str, Timeline] = {}
            stored, observed = [], Observed()
            latest = self._clock() + self.tolerance
            for row, event in enumerate(events):
                user = str(event.user)
                line = changed.get(user) or self.of(user)
                if _is_known(event, line):
                    observed.duplicates += 1
                elif reason := self._refusal(event, line, newest(user), latest):
                    observed.rejected.append(Rejected(row, reason))
                else:
                    changed[user] = _inserted(line, event, self.length)
                    stored.append(event)
            if stored and self.sink is not None:
                self.sink.append(stored)
            self._commit(changed)
            observed.stored = len(stored)
        return observed

    def replay(self, events: Iterable[Event]) -> None:
        """Store events that were accepted before, in their order."""
        with self._lock:
            for event in events:
                line = self.of(user := str(event.user))
                if not (_is_known(event, line) or self._is_too_old(event, line)):
                    self._commit({user: _inserted(line, event, self.length)})

    def _commit(self, changed: dict[str, Timeline]) -> None:
        for user, line in changed.items():
            self._users.pop(user, None)  # to the end of the order
            self._users[user] = line
        while len(self._users) > self.max_users:
            del self._users[next(iter(self._users))]

    def _refusal(self, event: Event, line: Timeline, newest: float, latest: float) -> str:
        if event.time > latest:
            rule = f"time must be at most {self.tolerance:g} s after the present"
            return f"{rule}, got {event.time:.15g}; send seconds since 1970 (UTC)"
        newest = max(newest, line.time[-1] if line.time else -math.inf)
        if event.time < newest - self.tolerance:
            rule = f"time must be at most {self.tolerance:g} s before the user's last event"
            got = f"{newest:.15g}, got {event.time:.15g}"
            return f"{rule}, {got}; send events in order, or raise the tolerance"
        if self._is_too_old(event, line):
            return f"older than the last {self.length} events of the user, which are kept"
        return ""

    def _is_too_old(self, event: Event, line: Timeline) -> bool:
        return len(line.time) >= self.length and event.time < line.time[0]


EMPTY = Timeline()


def _inserted(line: Timeline, event: Event, length: int) -> Timeline:
    """A copy with the event behind those of its time and before; the first one makes room."""
    place = bisect_right(line.time, event.time)
    item = (*line.item[:place], sys.intern(str(event.item)), *line.item[place:])
    value, moment, keys = line.value[:], line.time[:], line.keys[:]
    value.insert(place, math.nan if event.value is None else event.value)
    moment.insert(place, event.time)
    keys.insert(place, _digest(event))
    more = max(0, len(item) - length)
    gone = (line.gone + keys[:more])[-length:]
    return Timeline(item[more:], value[more:], moment[more:], keys[more:], gone)


def _is_known(event: Event, line: Timeline) -> bool:
    key = _digest(event)
    return key in line.keys or key in line.gone


def _digest(event: Event) -> int:
    """8 bytes: among a million events of a user, two would be equal once in 40 million times."""
    text = event.key.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
