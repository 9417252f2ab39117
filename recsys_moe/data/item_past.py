"""How old and how popular items were at any time. Axes: P events, S slots: the items, one without
events for unknown ones, and all items together. B rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recsys_moe.data.events import EventLog
from recsys_moe.model.encoders.base import shown

DAY = 86_400.0


class Known(NamedTuple):
    """Of each item at the end of a log, unknown items last: what a model folder keeps. (I + 1,)"""

    first: Tensor
    """When its first event was: float64 seconds, NaN without one."""
    popularity: Tensor
    """As in `Moment`, float32."""
    end: Tensor
    """(1,): when the last event of the log was, float64 seconds."""
    total: Tensor | None = None
    """(1,): decayed number of events of all items at the end, float64; None in older folders."""

    def at(
        self, item_B: Tensor, time_B: Tensor, given_B: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `Standing`. Popularity is unknown (NaN) up to the end of the log; a time that is
        unknown is right after it."""
        item_B = shown(item_B).long().clamp(max=len(self.first) - 1)
        time_B = torch.where(time_B.isnan(), self.end + 1, time_B)
        age_B = time_B - self.first[item_B]
        is_known_B = (age_B > 0) & (time_B > self.end)
        popularity_B = torch.where(is_known_B, self.popularity[item_B], torch.nan)
        return torch.where(age_B > 0, age_B, torch.nan).float(), popularity_B


class Counts(NamedTuple):
    """Numbers of events, each decayed to a time (seconds) of its own. (B,) float64"""

    number: Tensor
    time: Tensor

    def decayed(self, time_B: Tensor, per_second: float) -> Tensor:
        """The numbers at other times. `per_second`: halvings."""
        return self.number * torch.exp2((self.time - time_B).double() * per_second)

    def over(self, every: Counts, num_items: int, per_second: float) -> Tensor:
        """Popularity: those of an item, over what the mean item has of the events of all. What
        both have decayed by since cancels."""
        lag_B = (self.time - every.time).double() * per_second
        return num_items * (self.number / every.number * torch.exp2(lag_B))


class ItemPast:
    """Every event of a log counts 2^-(age / half-life) for its item; `at` reads what is strictly
    before a time, by one binary search a row."""

    def __init__(self, log: EventLog, num_items: int, half_life: float) -> None:
        """`half_life`: days."""
        item_P, time_P = log.item_P.long().clamp(max=num_items), log.time_P
        known_P = item_P < num_items
        item_P, time_P = item_P[known_P], time_P[known_P]
        self.num_items, self._per_second = num_items, per_second(half_life)
        self._low = int(time_P.min()) if len(time_P) else 0
        self._width = (int(time_P.max()) if len(time_P) else 0) - self._low + 2
        slot_P = torch.cat([item_P, torch.full_like(item_P, num_items + 1)])
        key_P, order_P = (slot_P * self._width + (time_P - self._low).repeat(2)).sort(stable=True)
        self._key_P, self._slot_P = key_P, slot_P[order_P]
        self._time_P = time_P.repeat(2)[order_P]
        counts_S = torch.bincount(self._slot_P, minlength=num_items + 2)
        self._first_S = torch.cat([counts_S.new_zeros(1), counts_S.cumsum(0)])
        self._state_P = self._states()

    def _states(self) -> Tensor:
        """Decayed number of events of a slot at each of them, itself counted. (P,) float64

        By doubling: after a step each place knows of twice as many events.
        """
        state_P, reach = torch.ones(len(self._key_P), dtype=torch.float64), 1
        most = int(self._first_S.diff().max())
        while reach < most:
            same_P = self._slot_P[reach:] == self._slot_P[:-reach]
            gap_P = (self._time_P[reach:] - self._time_P[:-reach]).double()
            more_P = state_P[:-reach] * torch.exp2(-gap_P * self._per_second)
            state_P = torch.cat([state_P[:reach], state_P[reach:] + more_P * same_P])
            reach *= 2
        return state_P

    def at(
        self, item_B: Tensor, time_B: Tensor, given_B: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `Standing`: age (B,) and popularity (B,), NaN where the item has no event before, and
        where the time is NaN."""
        if not len(self._key_P):
            unknown_B = torch.full(item_B.shape, torch.nan)
            return unknown_B, unknown_B
        slot_B = shown(item_B).long().clamp(max=self.num_items)
        all_B = self._last(torch.full_like(slot_B, self.num_items + 1), time_B)
        last_B = self._last(slot_B, time_B)
        is_known_B = (last_B >= self._first_S[slot_B]) & ~time_B.isnan()
        last_B, all_B = last_B.clamp(min=0), all_B.clamp(min=0)
        own, every = (Counts(self._state_P[one], self._time_P[one]) for one in (last_B, all_B))
        first_B = self._time_P[self._first_S[slot_B].clamp(max=len(self._key_P) - 1)]
        values = (time_B - first_B, own.over(every, self.num_items, self._per_second))
        age_B, popularity_B = (torch.where(is_known_B, one, torch.nan).float() for one in values)
        return age_B, popularity_B

    def _last(self, slot_B: Tensor, time_B: Tensor) -> Tensor:
        """Place of the last event of a slot strictly before a time."""
        since_B = (time_B.nan_to_num(0.0).ceil().long() - self._low).clamp(0, self._width - 1)
        return torch.searchsorted(self._key_P, slot_B * self._width + since_B) - 1

    def known(self) -> Known:
        """At the end of the log."""
        item_N, end = torch.arange(self.num_items + 1), self._low + self._width
        popularity_N = self.at(item_N, torch.full((len(item_N),), end, dtype=torch.float64))[1]
        first_N = torch.full((len(item_N),), torch.nan, dtype=torch.float64)
        known_N = ~popularity_N.isnan()
        first_N[known_N] = self._time_P[self._first_S[item_N[known_N]]].double()
        total = float(self._state_P[-1]) if len(self._state_P) else 0.0
        ends = (torch.tensor([one], dtype=torch.float64) for one in (end - 2.0, total))
        return Known(first_N, popularity_N, *ends)


def per_second(half_life: float) -> float:
    """Halvings a second. `half_life`: days."""
    return 1 / (half_life * DAY)
