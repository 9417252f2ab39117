"""One event as a caller gives it, checked."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from recsys_moe import raw_ids
from recsys_moe.errors import DataError, suggestion
from recsys_moe.inference.plain import plain, shown

LATEST = 253_402_300_799
"""The end of the year 9999; times in milliseconds lie behind it since 1978."""
LONGEST_ID = 512
"""Characters of an id."""
MOST = sys.float_info.max
LARGEST = 2**63 - 1
"""Whole numbers that need no further look at their text."""


class Event(NamedTuple):
    """What a user did with an item."""

    item: str | int
    time: float
    """Seconds since 1970-01-01 UTC."""
    value: float | None = None
    """The rating, in the unit of the training data; None: not rated."""
    user: str | int | None = None
    """Raw id; None for an event that a request brings for its own user."""
    id: str | int | None = None
    """What a second delivery is known by; None: the same item and time."""

    @property
    def key(self) -> str:
        """Equal for two deliveries of one event, among the events of its user."""
        return f"{self.time!r} {self.item}" if self.id is None else f"id {self.id}"


as_event = partial(tuple.__new__, Event)
"""Of its fields in a tuple; faster than `Event(*fields)`."""
GivenEvent: TypeAlias = Event | Mapping[str, Any]
NAMES = dict.fromkeys(Event._fields)
OWN = NAMES.keys() - {"user"}
NUMBERS = int, float


def distinct(events: list[Event]) -> list[Event]:
    """Of one user; of those delivered twice the first."""
    if len({one.time for one in events}) == len(events) and all(one.id is None for one in events):
        return events
    first: dict[str, Event] = {}
    for one in events:
        first.setdefault(one.key, one)
    return [*first.values()]


def read_events(
    given: Iterable[GivenEvent], *, of_users: bool, name: str = "events"
) -> list[Event]:
    """Checked events with ids as text. `of_users`: each must name its user, else none may.

    Raises DataError with the place of the event in the list of that name, from 0.
    """
    if isinstance(given, Mapping | Event | str):
        raise TypeError(f"expected a list of events, got {shown(given)}; pass [event]")
    if hasattr(given, "columns"):
        kind = type(given).__name__
        raise TypeError(f"expected a list of events, got a {kind}; pass its rows as dicts")
    events = []
    for row, one in enumerate(given):
        try:
            events.append(read_event(one, of_users=of_users))
        except DataError as error:
            raise DataError(f"{name}[{row}]: {error}") from None
    return events


class ReadEvents(list[Event]):
    """What `read_events` made of the events of a request."""


def read_plain(given: Any) -> ReadEvents | None:
    """`read_events` of a request, in a third of the time.

    None unless all are dicts of plain ids and numbers that obey the rules.
    """
    found = ReadEvents()
    if type(given) is not list:
        return None
    for one in given:
        if type(one) is not dict or not one.keys() <= OWN:
            return None
        get: Callable[[str], Any] = one.get
        time, value, key = get("time"), get("value"), get("id")
        item, own = _plain_id(get("item")), None if key is None else _plain_id(key)
        if item is None or (own is None and key is not None):
            return None
        if type(time) not in NUMBERS or not 0 <= time <= LATEST:
            return None
        if value is not None:
            if type(value) not in NUMBERS or not -MOST <= value <= MOST:
                return None
            value = float(value)
        found.append(as_event((item, float(time), value, None, own)))
    return found


def _plain_id(value: Any) -> str | None:
    """Of a text or a whole number of 64 bits; None for others, and for what is no id."""
    if type(value) is int and -LARGEST <= value <= LARGEST:
        return str(value)
    is_text = type(value) is str and len(value) <= LONGEST_ID
    return raw_ids.of_text(value) if is_text else None


def read_event(given: GivenEvent, *, of_users: bool) -> Event:
    """One event. Raises DataError."""
    cells = given._asdict() if isinstance(given, Event) else given
    if type(cells) is not dict:
        cells = plain(cells)
    if not isinstance(cells, dict):
        raise DataError(f"an event must be an object of item and time, got {shown(given)}")
    if not cells.keys() <= NAMES.keys():
        name = next(name for name in cells if name not in NAMES)
        hint = suggestion(str(name), NAMES)
        raise DataError(f"an event has no {shown(name)}; {hint}")
    user = cells.get("user")
    if of_users or user is not None:
        user = _id("user", user)
    if not of_users and user is not None:
        raise DataError(f"an event of a request belongs to its user; omit user {user}")
    value, key = cells.get("value"), cells.get("id")
    return Event(
        _id("item", cells.get("item")),
        read_time(cells.get("time")),
        None if value is None else _value(value),
        user,
        None if key is None else _id("id", key),
    )


def _id(name: str, value: Any) -> str:
    if type(value) is int and -LARGEST <= value <= LARGEST:
        return str(value)
    text = raw_ids.of_value(plain(value))
    if text is None or len(text) > LONGEST_ID:
        rule = f"{name} must be text of 1 to {LONGEST_ID} characters or a whole number"
        raise DataError(f"{rule}, got {shown(value)}")
    return text


def read_time(value: Any) -> float:
    """Seconds. Raises DataError."""
    number = _number(value)
    if number is None or not 0 <= number <= LATEST:
        rule = f"time must be seconds since 1970 (UTC) in 0..{LATEST}"
        remedy = "divide milliseconds by 1000" if number and number > LATEST else "convert it"
        raise DataError(f"{rule}, got {shown(value)}; {remedy}")
    return number


def _value(value: Any) -> float | None:
    number = _number(value)
    if number is None and plain(value) is not None:
        raise DataError(f"value must be a finite number or missing, got {shown(value)}")
    return number


def _number(value: Any) -> float | None:
    found = value if type(value) in NUMBERS else plain(value)
    if isinstance(found, bool) or not isinstance(found, NUMBERS):
        return None
    try:
        number = float(found)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
