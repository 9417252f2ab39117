"""Items a user has not interacted with, drawn uniformly without replacement.

The rule of the paper's MovieLens data: min(n_u, num_items - n_u) negatives for a user with n_u
positives. A pair is handled as one number, its key: user * num_items + item.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from data_prep.ids import Ints, sorted_distinct
from data_prep.split.randomness import Hashes, mix

GRID_CELLS = 4_000_000
"""Most (user, item) cells weighed at once for heavy users: bounds the memory at 32 MB."""


class OneStream:
    """Random items for all users, one after the other, from one generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def items(self, left: Ints, num_items: int) -> Ints:
        """left[u] uniform items for each user u, users ascending."""
        return self._rng.integers(0, num_items, int(left.sum()))

    def weights(self, users: Ints, num_items: int) -> NDArray[np.float64]:
        """(users, items) uniform in [0, 1)."""
        return self._rng.random((len(users), num_items))


class HashedDraws:
    """The same, where the sequence of each user depends on the user's own key alone."""

    def __init__(self, keys: Hashes) -> None:
        self._keys = keys
        self._used = np.zeros(len(keys), dtype=np.int64)

    def items(self, left: Ints, num_items: int) -> Ints:
        users = np.repeat(np.arange(len(left)), left)
        place = np.arange(len(users)) - np.repeat(np.cumsum(left) - left, left)
        number = (self._used[users] + place).astype(np.uint64)
        self._used += left
        half = mix(self._keys[users], number) >> np.uint64(32)
        return np.asarray((half * np.uint64(num_items)) >> np.uint64(32)).astype(np.int64)

    def weights(self, users: Ints, num_items: int) -> NDArray[np.float64]:
        items = ~np.arange(num_items, dtype=np.uint64)  # far from the numbers of items()
        return np.asarray((mix(self._keys[users][:, None], items) >> np.uint64(11)) * 2.0**-53)


Draws = OneStream | HashedDraws


def draw(wanted: Ints, taken: Ints, num_items: int, draws: Draws) -> Ints:
    """Keys of new pairs: for user u, min(wanted[u], free items of u) of them, in no set order.

    `taken`: sorted distinct keys that must not be drawn. Every set of free items of the right
    size is equally likely for each user.
    """
    if num_items == 0:
        return np.empty(0, dtype=np.int64)
    used = np.bincount(taken // num_items, minlength=len(wanted))
    need = np.minimum(wanted, num_items - used)
    # Rejection is fast only while a third of the items stay free; the grid is then no larger
    # than one and a half times the pairs of these users.
    heavy = 3 * (used + need) > 2 * num_items
    parts = [_by_rejection(np.where(heavy, 0, need), taken, num_items, draws)]
    parts += _by_grid(
        np.flatnonzero(heavy & (need > 0)), need, taken, num_items=num_items, draws=draws
    )
    return np.concatenate(parts)


def _by_rejection(need: Ints, taken: Ints, num_items: int, draws: Draws) -> Ints:
    """The first need[u] distinct free items of a uniform sequence, drawn in rounds."""
    left = need.copy()
    drawn: list[Ints] = []
    while left.any():
        users = np.repeat(np.arange(len(left)), left)
        keys = sorted_distinct(users * num_items + draws.items(left, num_items))
        for known in (taken, *drawn):
            keys = keys[~_contained(keys, known)]
        drawn.append(keys)
        left -= np.bincount(keys // num_items, minlength=len(left))
    return np.concatenate([*drawn, np.empty(0, dtype=np.int64)])


def _by_grid(
    users: Ints, need: Ints, taken: Ints, *, num_items: int, draws: Draws
) -> Iterator[Ints]:
    """The need[u] items of least random weight among the free ones, for blocks of users."""
    place = np.full(len(need), -1)
    place[users] = np.arange(len(users))
    taken = taken[place[taken // num_items] >= 0]
    row = place[taken // num_items]
    block = max(1, GRID_CELLS // num_items)
    for start in range(0, len(users), block):
        some = users[start : start + block]
        weight = draws.weights(some, num_items)
        here = slice(*np.searchsorted(row, [start, start + block]))
        weight[row[here] - start, taken[here] % num_items] = 2.0  # after every free item
        order = np.argsort(weight, axis=1)
        chosen = np.arange(num_items) < need[some][:, None]
        yield (some[:, None] * num_items + order)[chosen]


def _contained(keys: Ints, pool: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of `keys` are in `pool`; both sorted and distinct."""
    if len(pool) == 0:
        return np.zeros(len(keys), dtype=bool)
    place = np.searchsorted(pool, keys)
    place[place == len(pool)] = 0
    return np.asarray(pool[place] == keys)
