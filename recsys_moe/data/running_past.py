"""How old and how popular items are while events come in: an `ItemPast` that goes on from what a
model folder knows.

Axes: B rows, N slots: the items and one of unknown ones. M lists of events that requests bring, E
events of one.
"""

from __future__ import annotations

import math
import sys
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recsys_moe.data.item_past import Counts, Known, per_second
from recsys_moe.model.encoders.base import shown


class Found(NamedTuple):
    """Of rows, strictly before their times."""

    first: Tensor
    """When the first event of the item was, (B,); infinite without one."""
    own: Counts
    """Events of the item."""
    every: Counts
    """Events of all items."""
    end: float
    """Second up to which popularity is unknown."""


class RunningPast:
    """See `Standing`. Safe to use from several threads.

    Each event counts 2^-(age / half-life) for its item and for all. Of both are kept the counts at
    each event, decayed to its time: no number overflows, however late an event is. A request after
    the last event looks nothing up, an earlier one searches the items that had events since.
    Popularity is unknown (NaN) up to the end of the folder's log, or of what is folded:
    an event that is kept takes 32 bytes, a folded one none.
    """

    def __init__(self, known: Known, num_items: int, half_life: float) -> None:
        """`known`: with a total. `num_items`: its items, which the mean item is of, or more.
        `half_life`: days."""
        assert known.total is not None
        self.per_second, self._lock = per_second(half_life), threading.Lock()
        self._known, self.num_items, self.unknown = known, len(known.first) - 1, num_items
        self._end, total, self._has_events = float(known.end), float(known.total), False
        share_N = known.popularity[:-1].double().nan_to_num(0.0) / max(1, self.num_items)
        self._first_N, self._count_N = np.full(num_items + 1, math.inf), np.zeros(num_items + 1)
        self._first_N[: self.num_items] = known.first[:-1].nan_to_num(math.inf)
        self._count_N[: self.num_items] = share_N * total
        self._time_N = np.full(num_items + 1, self._end)
        self._lines: dict[int, _Line] = {}
        self._every = _Line(self._end, total)

    def add(self, events: Iterable[tuple[int, float]], most: int = sys.maxsize) -> None:
        """Item and second of each; unknown items do not count. Quick for events in order.

        Beyond `most` events that are kept one by one, the earlier half is folded.
        """
        with self._lock:
            for item, time in events:
                if item < self.unknown:
                    self._add(item, time)
            if len(self._every.time) > most:
                self._fold()

    def at(
        self, item_B: Tensor, time_B: Tensor, given_B: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Age (B,) and popularity (B,) of the items, NaN where unknown."""
        if not self._has_events:
            return self._known.at(item_B, time_B)
        found = self.values(self.read(self.slots(item_B), time_B), time_B)
        return self.without_time(item_B, time_B, found)

    def without_time(
        self, item_B: Tensor, time_B: Tensor, found: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """`found`, and where the time is NaN what a folder says that has no events."""
        age_B, popularity_B = self._known.at(item_B, time_B)
        is_known_B = ~time_B.isnan()
        return found[0].where(is_known_B, age_B), found[1].where(is_known_B, popularity_B)

    def slots(self, item_B: Tensor) -> Tensor:
        """The places of items, hidden ones included."""
        return shown(item_B).long().clamp(max=self.unknown)

    def read(self, slot_B: Tensor, time_B: Tensor) -> Found:
        """What was before some times."""
        slots, times = slot_B.numpy(), time_B.numpy()
        with self._lock:
            last_B, count_B = self._time_N[slots], self._count_N[slots]
            for row in np.flatnonzero((last_B >= times) & (times > self._end)):
                if (line := self._lines.get(int(slots[row]))) is not None:
                    last_B[row], count_B[row] = line.before(times[row])
            moment_U, place_B = np.unique(times, return_inverse=True)
            every_U2 = np.array([self._every.before(one) for one in moment_U]).reshape(-1, 2)
            first_B, end = self._first_N[slots], self._end
        time_B, total_B = every_U2[place_B].T
        own, every = (
            Counts(*map(torch.from_numpy, one)) for one in ((count_B, last_B), (total_B, time_B))
        )
        return Found(torch.from_numpy(first_B), own, every, end)

    def values(self, found: Found, time_B: Tensor) -> tuple[Tensor, Tensor]:
        """Age and popularity."""
        age_B = time_B - found.first
        popularity_B = found.own.over(found.every, self.num_items, self.per_second)
        popularity_B = popularity_B.where((age_B > 0) & (time_B > found.end), torch.nan)
        return age_B.where(age_B > 0, torch.nan).float(), popularity_B.float()

    def _add(self, item: int, time: float) -> None:
        line = self._lines.get(item)
        if line is None:
            line = self._lines[item] = _Line(self._time_N[item], self._count_N[item])
        for one in (line, self._every):
            one.add(time, self.per_second)
        self._has_events, self._first_N[item] = True, min(self._first_N[item], time)
        self._time_N[item], self._count_N[item] = line.time[-1], line.count[-1]

    def _fold(self) -> None:
        """Forget all but the counts at the middle event; what came later stays."""
        self._end = self._every.time[len(self._every.time) // 2]
        self._every.fold(self._end)
        for item, line in [*self._lines.items()]:
            line.fold(self._end)
            if len(line.time) == 1:
                del self._lines[item]


class WithGiven(NamedTuple):
    """A `RunningPast` with the events of a request, each list for its own rows."""

    past: RunningPast
    slot_ME: Tensor
    """Places of items."""
    time_ME: Tensor
    """Seconds; infinite for what does not count."""

    @classmethod
    def of(cls, past: RunningPast, lists: Sequence[Sequence[tuple[int, float]]]) -> WithGiven:
        """Item and second of the events of each list."""
        width = max(1, *map(len, lists))
        padded = [[*one, *[(0, math.inf)] * (width - len(one))] for one in lists]
        item_ME, time_ME = torch.tensor(padded, dtype=torch.float64).unbind(-1)
        slot_ME = past.slots(item_ME.long())
        return cls(past, slot_ME, time_ME.where(slot_ME < past.unknown, math.inf))

    def at(
        self, item_B: Tensor, time_B: Tensor, given_B: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `Standing`."""
        if given_B is None:
            return self.past.at(item_B, time_B)
        slot_B = self.past.slots(item_B)
        found, time_BE = self.past.read(slot_B, time_B), self.time_ME[given_B]
        is_before_BE = time_BE < time_B[:, None]
        is_own_BE = is_before_BE & (self.slot_ME[given_B] == slot_B[:, None])
        seconds_BE = time_BE.where(is_before_BE, -math.inf)
        last_B = torch.maximum(found.every.time, seconds_BE.amax(1))
        weight_BE = torch.exp2((seconds_BE - last_B[:, None]) * self.past.per_second)
        own, every = (
            Counts(counts.decayed(last_B, self.past.per_second) + more_BE.sum(1), last_B)
            for counts, more_BE in ((found.own, weight_BE * is_own_BE), (found.every, weight_BE))
        )
        first_B = torch.minimum(found.first, time_BE.where(is_own_BE, math.inf).amin(1))
        values = self.past.values(Found(first_B, own, every, found.end), time_B)
        return self.past.without_time(item_B, time_B, values)


class _Line:
    """Events by time, and how many there were up to each, decayed to its time."""

    def __init__(self, time: float, count: float) -> None:
        """What was before the first one."""
        self.time, self.count = array("d", [time]), array("d", [count])

    def add(self, time: float, per_second: float) -> None:
        """One more event; later ones count it, too."""
        place = bisect_right(self.time, time)
        before, count = self._at(place - 1)
        self.time.insert(place, time)
        self.count.insert(place, 1 + count * 2 ** ((before - time) * per_second))
        if place + 1 < len(self.time):
            time_P, count_P = np.frombuffer(self.time), np.frombuffer(self.count)
            count_P[place + 1 :] += np.exp2((time - time_P[place + 1 :]) * per_second)

    def before(self, time: float) -> tuple[float, float]:
        """Time and number of events strictly before a time."""
        return self._at(bisect_left(self.time, time) - 1)

    def fold(self, end: float) -> None:
        """Forget the events up to a time but for their number."""
        first = bisect_right(self.time, end) - 1
        if first > 0:
            del self.time[:first], self.count[:first]

    def _at(self, place: int) -> tuple[float, float]:
        return (self.time[place], self.count[place]) if place >= 0 else (-math.inf, 0.0)
