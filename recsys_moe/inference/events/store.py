"""The last events of each user, in memory.

A reader needs no lock: the timeline of a user is replaced, and it keeps what it has read.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet

from recsys_moe.errors import ConfigError, DataError
from recsys_moe.inference.events.observed import Event
from recsys_moe.inference.events.timeline import (
    EMPTY,
    Timeline,
    Told,
    inserted,
    is_known,
    last_events,
    line_of,
    told,
)

TOLERANCE = 3600.0
MAX_USERS, MAX_EVENTS = 100_000, 200_000
REPLAYED_AT_ONCE = 1000


STORED, DUPLICATE = "stored", "duplicate"


@dataclass(frozen=True)
class Observed:
    """What became of a list of events."""

    outcomes: Sequence[str]
    """Of each: `stored`, `duplicate` (delivered before: nothing changed), or why it was
    rejected."""

    @property
    def stored(self) -> int:
        """Events that the next request sees."""
        return self.outcomes.count(STORED)

    @property
    def duplicates(self) -> int:
        """Events that were delivered before."""
        return self.outcomes.count(DUPLICATE)

    @property
    def rejected(self) -> dict[int, str]:
        """Reasons by place in the list, from 0."""
        pairs = enumerate(self.outcomes)
        return {row: words for row, words in pairs if words not in (STORED, DUPLICATE)}


class Sink(Protocol):
    """Where stored events are kept beyond the process."""

    def append(self, events: Sequence[Event]) -> None: ...


class Follower(Protocol):
    """Who hears of every stored event."""

    def add(self, events: Sequence[Told]) -> None: ...


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
            raise ConfigError(f"--max-event-users must be at least 1, got {max_users}")
        if not 0 <= tolerance < math.inf:
            raise ConfigError(f"--event-tolerance must be at least 0 seconds, got {tolerance:g}")
        self.length, self.max_users, self.tolerance = length, max_users, tolerance
        self.max_events = MAX_EVENTS
        """Of all users, that followers keep one by one; of earlier ones they keep sums."""
        self.sink: Sink | None = None
        self.newest = -math.inf
        """Time of the newest event of all that were stored, seconds."""
        self._clock, self._lock = clock, threading.Lock()
        self._users: dict[str, Timeline] = {}
        self._followers: WeakSet[Follower] = WeakSet()

    def __len__(self) -> int:
        """Users with events."""
        return len(self._users)

    def of(self, user: str) -> Timeline:
        """The events of a user by raw id as text (`raw_ids.of_value`); empty without any."""
        return self._users.get(user, EMPTY)

    def follow(self, follower: Follower) -> None:
        """Tell of the last `max_events` that are kept, and of all that come while it exists."""
        with self._lock:
            self._followers.add(follower)
            lines = [*self._users.items()]
        follower.add(last_events(lines, self.max_events))

    def _tell(self, events: Iterable[Told]) -> None:
        if self._followers:
            some = [*events]
            for follower in [*self._followers]:
                follower.add(some)

    def append(
        self, events: Sequence[Event], newest: Mapping[str, float] | None = None
    ) -> Observed:
        """Store checked events (`read_events`); first in the sink, where there is one.

        `newest`: by user, the time of the last event that is known from elsewhere. Where the sink
        raises, nothing is stored.
        """
        outcomes: list[str] = []
        with self._lock:
            changed: dict[str, Timeline] = {}
            latest = self._latest()
            for event in events:
                line = changed.get(user := str(event.user)) or self.of(user)
                last = (newest or {}).get(user, -math.inf)
                outcomes.append(self._outcome(event, line, last, latest))
                if outcomes[-1] == STORED:
                    changed[user] = inserted(line, event, self.length)
            pairs = zip(events, outcomes, strict=True)
            stored = [event for event, words in pairs if words == STORED]
            if stored and self.sink is not None:
                self.sink.append(stored)
            self._commit(changed)
            self._tell(map(told, stored))
        return Observed(outcomes)

    def replay(self, events: Iterable[Event]) -> None:
        """Store events that were accepted before, in their order."""
        left = iter(events)
        with self._lock:
            while part := [*itertools.islice(left, REPLAYED_AT_ONCE)]:
                self._tell([told(event) for event in part if self._replay(event)])

    def _replay(self, event: Event) -> bool:
        line = self.of(user := str(event.user))
        if is_known(event, line) or self._is_too_old(event, line):
            return False
        self._commit({user: inserted(line, event, self.length)})
        return True

    def keep(self, events: Iterable[Event]) -> None:
        """Store all events of a short-lived process, however many a user has: a request about an
        earlier time must find those before it."""
        found: dict[str, list[Event]] = {}
        for event in events:
            found.setdefault(str(event.user), []).append(event)
        with self._lock:
            lines = {user: line_of(own) for user, own in found.items()}
            self._commit(lines)
            self._tell(last_events([*lines.items()], sys.maxsize))

    def _commit(self, changed: dict[str, Timeline]) -> None:
        for user, line in changed.items():
            self._users.pop(user, None)  # to the end of the order
            self._users[user] = line
            self.newest = max(self.newest, line.time[-1])
        while len(self._users) > self.max_users:
            del self._users[next(iter(self._users))]

    def _outcome(self, event: Event, line: Timeline, newest: float, latest: float) -> str:
        if is_known(event, line):
            return DUPLICATE
        if event.time > latest:
            return f"{self._not_yet(event)}; send seconds since 1970 (UTC)"
        newest = max(newest, line.time[-1] if line.time else -math.inf)
        if event.time < newest - self.tolerance:
            rule = f"time must be at most {self.tolerance:g} s before the user's last event"
            got = f"{newest:.15g}, got {event.time:.15g}"
            return f"{rule}, {got}; send events in order, or raise the tolerance"
        if self._is_too_old(event, line):
            rule = f"time must be within the last {self.length} events of the user, which are kept"
            return f"{rule}, got {event.time:.15g}; omit older events"
        return STORED

    def check(self, event: Event) -> None:
        """Raise DataError for an event of the future, which would reject all that follow."""
        if event.time > self._latest():
            raise DataError(self._not_yet(event))

    def _latest(self) -> float:
        return self._clock() + self.tolerance

    def _not_yet(self, event: Event) -> str:
        rule = f"time must be at most {self.tolerance:g} s after the present"
        return f"{rule}, got {event.time:.15g}"

    def _is_too_old(self, event: Event, line: Timeline) -> bool:
        return len(line.time) >= self.length and event.time < line.time[0]
