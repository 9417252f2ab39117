"""What the users of a request did: events of the model folder, observed ones, and the request's.

Axes: B rows, M windows (one for each user with each list of the request's own events).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.errors import DataError
from recsys_moe.inference.events.observed import Event, GivenEvent, distinct
from recsys_moe.inference.events.reader import EventReader
from recsys_moe.inference.events.shared_windows import SharedWindows
from recsys_moe.inference.events.states import TIME, Entry, as_entry
from recsys_moe.inference.events.store import EventStore, Observed
from recsys_moe.inference.events.stored import StoredEvents
from recsys_moe.inference.events.timeline import EMPTY, Timeline, is_known
from recsys_moe.inference.vocabulary import Vocabulary
from recsys_moe.model.request import Events

RowEvents: TypeAlias = Sequence[GivenEvent] | Sequence[Sequence[GivenEvent] | None] | None
"""Events that a request brings: of the user of all rows, or a list for each row."""
Identity: TypeAlias = str | tuple[Event, ...]
"""Who has no index of their own: the raw id, or the events of a cold-start user."""


class Asked(NamedTuple):
    """Whose events a window holds."""

    user: int
    """Index of a known user, else `size` or above."""
    line: Timeline
    """Observed events."""
    own: Sequence[Event]
    """Of the request or of a cold-start user."""
    name: str
    """Raw id of an unknown user who has one; else empty."""
    before: float = math.inf
    """Seconds; later events are not read."""


_before = attrgetter("before")


def _whose(asked: Asked) -> tuple[Any, ...]:
    """Equal for one timeline; of own events only the last before a time are in it."""
    return asked if asked.own else asked[:-1]


class Windows(NamedTuple):
    """The windows that the rows of a request read."""

    asked: list[Asked]
    user_M: Tensor
    """Their users, as in `Asked`."""
    window_B: Tensor
    """Which of them each row reads."""


class UserEvents:
    """The events of users by time, each once, of which a model reads the last.

    A stored event is known again by item and second, an observed one by its key. Of equal times
    stored ones come first, then observed ones, then those of the request, each in their order.
    """

    def __init__(
        self,
        artifact: Artifact,
        users: Vocabulary,
        items: Vocabulary,
        *,
        reader: EventReader,
        store: EventStore,
    ) -> None:
        """`store`: of this model or of the one that it replaces."""
        self._users, self.items, self._reader, self.store = users, items, reader, store
        self.length = artifact.config.model.sequence_length
        store.length = max(store.length, self.length)
        self._sizes = artifact.schema.user.size, artifact.schema.item.size
        self._stored = StoredEvents(artifact, self.length)

    @property
    def newest(self) -> float:
        """When the last stored event of all was, seconds."""
        return self._stored.newest

    def observe(self, events: Sequence[Event]) -> Observed:
        """Store checked events."""
        return self.store.append(events, self._newest({str(one.user) for one in events}))

    def _newest(self, users: Iterable[str]) -> dict[str, float]:
        """Of users by raw id, the time of the last stored event; without those who have none."""
        users = sorted(users)
        if not users:
            return {}
        newest = self._stored.newest_of(self._users.index(users)[0])
        pairs = zip(users, newest, strict=True)
        return {user: moment for user, moment in pairs if moment > -math.inf}

    def events(self, windows: Windows) -> Events | None:
        """What a model reads of the users of the rows; None where nobody did anything."""
        shared = SharedWindows(self.length)
        for _, group in groupby(windows.asked, _whose):
            same = [*group]
            last, befores = max(same, key=_before), [*map(_before, same)]
            if last.line.time or last.own or min(befores) < math.inf:
                shared.add(last.user, self._timeline(last), befores)
            else:
                shared.add_stored(last.user)
        return shared.events(self._stored, windows.window_B)

    def asked(
        self,
        index_B: Tensor,
        identities: Mapping[int, Identity],
        given: RowEvents = None,
        *,
        time_B: Tensor | None = None,
    ) -> Windows:
        """Whose events rows read.

        `index_B`: of known users, `size` or ~i of others, who are in `identities` by row where
        there may be events. `time_B`: rows read what is strictly before, all of it where it is NaN.
        Raises DataError for invalid events of the request.
        """
        lists, list_B = self._given(given, len(index_B))
        lists = [distinct(events) for events in lists]
        brought = [one for one in identities.values() if not isinstance(one, str)]
        before_N, before_B = self._before(time_B, [*lists, *brought], len(index_B))
        list_B = list_B * len(before_N) + before_B
        size, places = self._sizes[0], dict[Identity, int]()
        user_B = index_B.where(index_B >= 0, size)
        for row, one in identities.items():
            user_B[row] = size + 1 + places.setdefault(one, len(places))
        pairs = len(lists) * len(before_N)
        key_M, window_B = (user_B * pairs + list_B).unique(return_inverse=True)
        user_M, list_M = key_M.div(pairs, rounding_mode="floor"), key_M % pairs
        whom = zip(user_M.tolist(), self._identities(user_M, [*places]), strict=True)
        asked, lines = [], dict[str, Timeline]()  # another thread may store events meanwhile
        for (user, who), pair in zip(whom, list_M.tolist(), strict=True):
            number, before = divmod(pair, len(before_N))
            if isinstance(who, str):
                name = who if user > size else ""
                line = lines.setdefault(who, self.store.of(who))
                asked.append(Asked(user, line, lists[number], name, before_N[before]))
            else:
                own = distinct([*who, *lists[number]])
                asked.append(Asked(user, EMPTY, own, "", before_N[before]))
        return Windows(asked, user_M, window_B)

    def _before(
        self, time_B: Tensor | None, lists: Sequence[Sequence[Event]], rows: int
    ) -> tuple[list[float], Tensor]:
        """The times that rows must not see, and which of them each has: infinite where no known
        event is as late, so that rows of now share windows."""
        if time_B is None:
            return [math.inf], torch.zeros(rows, dtype=torch.long)
        own = max((one.time for events in lists for one in events), default=-math.inf)
        newest = max(own, self.newest, self.store.newest)
        is_past_B = time_B <= newest  # of NaN: no
        before_N, before_B = time_B.where(is_past_B, math.inf).unique(return_inverse=True)
        return before_N.tolist(), before_B

    def _given(self, given: RowEvents, rows: int) -> tuple[list[list[Event]], Tensor]:
        """The lists of events that the rows bring, and which of them each row has."""
        same_B = torch.zeros(rows, dtype=torch.long)
        if given is None or not len(given):
            return [[]], same_B
        if isinstance(given, Mapping | Event | str) or isinstance(given[0], Mapping | Event):
            return [self._reader.read(given, of_users=False)], same_B  # type: ignore[arg-type]
        if len(given) != rows:
            raise DataError(
                f"events must be of all rows or a list for each of {rows}, got {len(given)}"
            )
        places = {id(one): place for place, one in enumerate(given)}  # one list of many rows
        numbers = {place: number for number, place in enumerate(sorted(set(places.values())))}
        lists = [
            self._reader.read(given[place] or (), of_users=False, name=f"events[{place}]")  # type: ignore[arg-type]
            for place in numbers
        ]
        return lists, torch.tensor([numbers[places[id(one)]] for one in given], dtype=torch.long)

    def _identities(self, user_M: Tensor, others: Sequence[Identity]) -> list[Identity]:
        """Of each window: the raw id, or the events of a cold-start user; empty of nobody."""
        size = self._sizes[0]
        known_M = user_M < size
        texts = iter(self._users.texts(user_M[known_M]) if len(self.store) else ())
        return [
            next(texts, "") if user < size else others[user - size - 1] if user > size else ()
            for user in user_M.tolist()
        ]

    def joined(self, asked: Asked) -> list[Entry]:
        """The last events of a user, wherever they are from."""
        return self._timeline(asked)[-self.length :]

    def _timeline(self, asked: Asked) -> list[Entry]:
        """All that are known, by time."""
        found, line = self._stored.of(asked.user), asked.line
        known = {(one.item, math.floor(one.time)) for one in found}
        new = self._entries(line.item, line.time, line.value) + self.own([asked])[0]
        for one in new:
            if one.item == self._sizes[1] or (one.item, math.floor(one.time)) not in known:
                found.append(one)
        found = [one for one in found if one.time < asked.before]
        return sorted(found, key=TIME)

    def is_stored(self, user: int, item: int, time: float) -> bool:
        """Is an event in the log of the model folder, as far as the last ones of its user tell?"""
        if time > self.newest:
            return False
        found = self._stored.of(user)
        if len(found) >= self.length and time < found[0].time:
            return True
        return (item, math.floor(time)) in {(one.item, math.floor(one.time)) for one in found}

    def own(self, asked: Sequence[Asked]) -> list[list[Entry]]:
        """The last own events of each window by time, without those that were observed before."""
        new = [
            [event for event in self._last(one) if not is_known(event, one.line)]
            if one.line.time
            else self._last(one)
            for one in asked
        ]
        if not (flat := [event for own in new for event in own]):
            return [[] for _ in new]
        items, times, ratings, *_ = zip(*flat, strict=True)
        values = [math.nan if one is None else one for one in ratings]
        entries = iter(self._entries([*map(str, items)], times, values))
        return [[*islice(entries, len(own))] for own in new]

    def _last(self, asked: Asked) -> Sequence[Event]:
        """Of its own events; what is later than it may see makes no room for itself."""
        own = asked.own
        if asked.before < math.inf:
            own = [event for event in own if event.time < asked.before]
        if len(own) <= self.length:
            return own
        return sorted(own, key=lambda event: event.time)[-self.length :]

    def _entries(
        self, items: Sequence[str], times: Sequence[float], values: Sequence[float]
    ) -> list[Entry]:
        """Events of raw items and ratings as the model reads them."""
        if not items:
            return []
        index_N = self.items.places(items)
        columns = times, index_N, self._reader.standardised(values)
        return [*map(as_entry, zip(*columns, strict=True))]
