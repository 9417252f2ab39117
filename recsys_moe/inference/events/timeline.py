"""The last events of a user: a tuple of columns that is replaced, never changed."""

from __future__ import annotations

import hashlib
import itertools
import math
import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from recsys_moe.inference.events.observed import Event


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


Told: TypeAlias = tuple[str, str, float]
"""User, item and second of an event."""


EMPTY = Timeline()
_versions = itertools.count(1)


def inserted(line: Timeline, event: Event, length: int) -> Timeline:
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


def line_of(events: Sequence[Event]) -> Timeline:
    """Of one user, in the order of their arrival: as `inserted` one after the other."""
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


def told(event: Event) -> Told:
    return str(event.user), str(event.item), event.time


def last_events(lines: Sequence[tuple[str, Timeline]], most: int) -> list[Told]:
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
