"""The last events of each user, in memory.

A timeline is replaced, never changed: a reader needs no lock and keeps what it has read.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import sys
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias
from weakref import WeakSet

from recsys_moe.errors import ConfigError, DataError
from recsys_moe.inference.events.observed import Event

TOLERANCE = 3600.0
MAX_USERS, MAX_EVENTS = 100_000, 200_000
REPLAYED_AT_ONCE = 1000


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
    version: int = 0
    """Another one for all other events of the process; 0: empty."""


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


Told: TypeAlias = tuple[str, str, float]
"""User, item and second of an event."""


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
        follower.add(_last_events(lines, self.max_events))

    def _tell(self, events: Iterable[Told]) -> None:
        if self._followers:
            told = [*events]
            for follower in [*self._followers]:
                follower.add(told)

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
                    changed[user] = _inserted(line, event, self.length)
            pairs = zip(events, outcomes, strict=True)
            stored = [event for event, words in pairs if words == STORED]
            if stored and self.sink is not None:
                self.sink.append(stored)
            self._commit(changed)
            self._tell(map(_told, stored))
        return Observed(outcomes)

    def replay(self, events: Iterable[Event]) -> None:
        """Store events that were accepted before, in their order."""
        left = iter(events)
        with self._lock:
            while part := [*itertools.islice(left, REPLAYED_AT_ONCE)]:
                self._tell([_told(event) for event in part if self._replay(event)])

    def _replay(self, event: Event) -> bool:
        line = self.of(user := str(event.user))
        if is_known(event, line) or self._is_too_old(event, line):
            return False
        self._commit({user: _inserted(line, event, self.length)})
        return True

    def keep(self, events: Iterable[Event]) -> None:
        """Store all events of a short-lived process, however many a user has: a request about an
        earlier time must find those before it."""
        found: dict[str, list[Event]] = {}
        for event in events:
            found.setdefault(str(event.user), []).append(event)
        with self._lock:
            lines = {user: _line(own) for user, own in found.items()}
            self._commit(lines)
            self._tell(_last_events([*lines.items()], sys.maxsize))

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
            return f"older than the last {self.length} events of the user, which are kept"
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


EMPTY = Timeline()
_versions = itertools.count(1)


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
    kept = item[more:], value[more:], moment[more:], keys[more:]
    return Timeline(*kept, gone, next(_versions))


def _line(events: Sequence[Event]) -> Timeline:
    """Of one user, in the order of their arrival: as `_inserted` one after the other."""
    first: dict[int, Event] = {}
    for event in events:
        first.setdefault(_digest(event), event)
    own = dict(sorted(first.items(), key=lambda pair: pair[1].time))
    values = [math.nan if event.value is None else event.value for event in own.values()]
    return Timeline(
        tuple(sys.intern(str(event.item)) for event in own.values()),
        array("d", values),
        array("d", [event.time for event in own.values()]),
        array("Q", own),
        version=next(_versions),
    )


def _told(event: Event) -> Told:
    return str(event.user), str(event.item), event.time


def _last_events(lines: Sequence[tuple[str, Timeline]], most: int) -> list[Told]:
    """At most so many, and those of the same time as the first of them."""
    times = sorted(itertools.chain.from_iterable(line.time for _, line in lines))
    since = times[-most] if len(times) > most else -math.inf
    return [
        (user, item, moment)
        for user, line in lines
        for item, moment in zip(line.item, line.time, strict=True)
        if moment >= since
    ]


def is_known(event: Event, line: Timeline) -> bool:
    """Was it delivered before?"""
    if not line.time:
        return False
    key = _digest(event)
    return key in line.keys or key in line.gone


def _digest(event: Event) -> int:
    """8 bytes: among a million events of a user, two would be equal once in 40 million times."""
    text = event.key.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
