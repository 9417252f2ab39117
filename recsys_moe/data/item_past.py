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

    def at(self, item_B: Tensor, time_B: Tensor) -> tuple[Tensor, Tensor]:
        """See `Standing`. Popularity is unknown (NaN) up to the end of the log."""
        item_B = shown(item_B).long().clamp(max=len(self.first) - 1)
        age_B = time_B - self.first[item_B]
        is_known_B = (age_B > 0) & (time_B > self.end)
        popularity_B = torch.where(is_known_B, self.popularity[item_B], torch.nan)
        return torch.where(age_B > 0, age_B, torch.nan).float(), popularity_B


class ItemPast:
    """Every event of a log counts 2^-(age / half-life) for its item; `at` reads what is strictly
    before a time, by one binary search a row."""

    def __init__(self, log: EventLog, num_items: int, half_life: float) -> None:
        """`half_life`: days."""
        item_P, time_P = log.item_P.long().clamp(max=num_items), log.time_P
        known_P = item_P < num_items
        item_P, time_P = item_P[known_P], time_P[known_P]
        self.num_items, self._per_second = num_items, 1 / (half_life * DAY)
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

    def at(self, item_B: Tensor, time_B: Tensor) -> tuple[Tensor, Tensor]:
        """See `Standing`: age (B,) and popularity (B,), NaN where the item has no event before, and
        where the time is NaN.

        Popularity is a share, in which the decay since the last event of all cancels.
        """
        if not len(self._key_P):
            unknown_B = torch.full(item_B.shape, torch.nan)
            return unknown_B, unknown_B
        slot_B = shown(item_B).long().clamp(max=self.num_items)
        all_B = self._last(torch.full_like(slot_B, self.num_items + 1), time_B)
        last_B = self._last(slot_B, time_B)
        is_known_B = (last_B >= self._first_S[slot_B]) & ~time_B.isnan()
        last_B, all_B = last_B.clamp(min=0), all_B.clamp(min=0)
        lag_B = (self._time_P[last_B] - self._time_P[all_B]).double() * self._per_second
        share_B = self._state_P[last_B] / self._state_P[all_B] * torch.exp2(lag_B)
        first_B = self._time_P[self._first_S[slot_B].clamp(max=len(self._key_P) - 1)]
        values = (time_B - first_B, self.num_items * share_B)
        age_B, popularity_B = (torch.where(is_known_B, one, torch.nan).float() for one in values)
        return age_B, popularity_B

    def _last(self, slot_B: Tensor, time_B: Tensor) -> Tensor:
        """Place of the last event of a slot strictly before a time."""
        since_B = (time_B.nan_to_num(0.0).ceil().long() - self._low).clamp(0, self._width - 1)
        return torch.searchsorted(self._key_P, slot_B * self._width + since_B) - 1

    def known(self) -> Known:
        """At the end of the log."""
        item_N, end = torch.arange(self.num_items + 1), self._low + self._width
        popularity_N = self.at(item_N, torch.full((len(item_N),), float(end)).double())[1]
        first_N = torch.full((len(item_N),), torch.nan, dtype=torch.float64)
        known_N = ~popularity_N.isnan()
        first_N[known_N] = self._time_P[self._first_S[item_N[known_N]]].double()
        return Known(first_N, popularity_N, torch.tensor([end - 2.0], dtype=torch.float64))
