"""Which items are free for a user to get as a negative, and how likely each is to be drawn.

Axes: N rows, K pairs, M rows that ask, U users, I items.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LAST = torch.iinfo(torch.int64).max
"""Ends the sorted keys of pairs; the time of what never came."""


class Touched:
    """The pairs of a split: without times those of all rows, whenever they were.

    With times an item is free for a user at t that had a row by then, of anyone, and that the user
    had not touched by then, as `prepare` draws negatives; rows after t have no part in it.
    """

    def __init__(self, parts: Sequence[tuple[Tensor, Tensor | None]], items: int) -> None:
        """`parts`: keys of pairs, see `pair_keys`, with the seconds of each or None. `items`: the
        number of the unknown item."""
        self.items = items
        self.since_K = self.born_I = None
        key_K, times = torch.cat([key for key, _ in parts]), [time for _, time in parts]
        known = [time for time in times if time is not None]
        if known:
            key_K, since_K = firsts(key_K, torch.cat(known))
            item, born = firsts(key_K % (items + 1), since_K)
            self.since_K = torch.cat([since_K, since_K.new_full((1,), LAST)])
            self.born_I = born.new_full((items + 1,), LAST).scatter_(0, item, born)
        else:
            key_K = key_K.unique()
        self.key_K = torch.cat([key_K, key_K.new_full((1,), LAST)])

    def is_free(self, user_M: Tensor, item_M: Tensor, time_M: Tensor | None) -> Tensor:
        """Whether an item is free for a user, at a time."""
        key_M = pair_keys(user_M, item_M, self.items)
        place_M = torch.searchsorted(self.key_K, key_M)
        is_touched_M = self.key_K[place_M] == key_M
        if self.since_K is None or self.born_I is None or time_M is None:
            return ~is_touched_M
        is_touched_M &= self.since_K[place_M] <= time_M
        return (self.born_I[item_M] <= time_M) & ~is_touched_M

    def pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """User, item and place of each pair with an item of the vocabulary."""
        key_K = self.key_K[:-1]
        user_K, item_K = key_K // (self.items + 1), key_K % (self.items + 1)
        place = (item_K < self.items).nonzero()[:, 0]
        return user_K[place], item_K[place], place


def pair_keys(user_N: Tensor, item_N: Tensor, items: int) -> Tensor:
    """One number per pair, also with the unknown item `items`."""
    return user_N * (items + 1) + item_N


def firsts(key_K: Tensor, time_K: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct keys, ascending, and the least time of each."""
    distinct, place_K = key_K.unique(return_inverse=True)
    least = time_K.new_full((len(distinct),), LAST)
    return distinct, least.scatter_reduce_(0, place_K, time_K, "amin")


class MeanRates:
    """Mean rate of the items that are free for each user, or of all items where none is."""

    def __init__(self, touched: Touched, rate_I: Tensor, users: int) -> None:
        user, item, _ = touched.pairs()
        taken_U = torch.zeros(users, dtype=torch.float64).index_add_(0, user, rate_I[item])
        free_U = touched.items - torch.bincount(user, minlength=users)
        mean_U = (rate_I.sum() - taken_U) / free_U.clamp(min=1)
        self.mean_U = torch.where(free_U > 0, mean_U, rate_I.mean())

    def of(self, user_N: Tensor, time_N: Tensor | None) -> Tensor:
        """`time_N` is not read."""
        return self.mean_U[user_N]


class MeanRatesByTime:
    """The same for pairs with times, of the items that there were at a time; 1 where none was."""

    def __init__(self, touched: Touched, rate_I: Tensor) -> None:
        assert touched.since_K is not None and touched.born_I is not None
        born_I, order_I = touched.born_I[: touched.items].sort(stable=True)
        self.born_I, self.sum_I = born_I, _sums(rate_I[order_I])
        user, item, place = touched.pairs()
        since = touched.since_K[place]
        self.times = since.unique()
        key, order = self._key(user, torch.searchsorted(self.times, since)).sort(stable=True)
        self.key_K, self.sum_K = key, _sums(rate_I[item[order]])

    def of(self, user_N: Tensor, time_N: Tensor | None) -> Tensor:
        """At the times of rows."""
        assert time_N is not None
        end_N = torch.searchsorted(self.born_I, time_N, right=True)
        rank_N = torch.searchsorted(self.times, time_N, right=True)
        first_N, last_N = (
            torch.searchsorted(self.key_K, self._key(user_N, rank))
            for rank in (torch.zeros_like(rank_N), rank_N)
        )
        free_N = end_N - (last_N - first_N)
        taken_N = self.sum_K[last_N] - self.sum_K[first_N]
        mean_N = (self.sum_I[end_N] - taken_N) / free_N.clamp(min=1)
        all_N = torch.where(end_N > 0, self.sum_I[end_N] / end_N.clamp(min=1), 1.0)
        return torch.where(free_N > 0, mean_N, all_N)

    def _key(self, user: Tensor, rank: Tensor) -> Tensor:
        return user * (len(self.times) + 1) + rank


def _sums(rate_X: Tensor) -> Tensor:
    """Of the first 0, 1, ... of them."""
    return torch.cat([rate_X.new_zeros(1), rate_X.cumsum(0)])
