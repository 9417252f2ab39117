"""Items a user has not interacted with, drawn without replacement: uniformly or by popularity.

The rule of the paper's MovieLens data: min(n_u, num_items - n_u) negatives for a user with n_u
positives. A pair is handled as one number, its key (ids.pair_keys).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.ids import Index, Ints, sorted_distinct
from data_prep.rows import UNKNOWN_TIME, Examples
from data_prep.split.randomness import Hashes, mix
from recsys_moe.schema import Distribution

GRID_CELLS = 4_000_000
"""Most (user, item) cells weighed at once for heavy users: bounds the memory at 32 MB."""
MOST_ROUNDS = 64
"""By popularity: then the few users who own most of the popular items are left to the grid."""


@dataclass(frozen=True, kw_only=True)
class Negatives:
    """What to draw."""

    task: str
    """The binary task whose label 1 is a positive and whose negatives get label 0."""
    ratio: float = 1.0
    """Negatives for each positive, > 0; rounded up for each user."""
    distribution: Distribution = "uniform"
    """`popularity`: an item as likely as it has rows."""

    def wanted(self, rows: Examples, user: Index | Ints, num_users: int) -> Ints:
        """How many for each user, given the index `user` of each row."""
        positives = np.bincount(user[rows.labels[self.task] == 1], minlength=num_users)
        return np.ceil(self.ratio * positives - 1e-9).astype(np.int64)  # 100 * 0.07 is more than 7

    def positives(self, rows: Examples) -> Ints:
        """The rows that negatives are drawn for and take their time and context from; none where
        the rows have neither."""
        is_timed = bool((rows.timestamp != UNKNOWN_TIME).any())
        if rows.context is None and not is_timed:
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(rows.labels[self.task] == 1)

    def draws(self, base: OneStream | HashedDraws, rows_of_item: Ints) -> Draws:
        """`base`, or made to follow the number of rows that each item has, at least one."""
        return base if self.distribution == "uniform" else ByPopularity(base, rows_of_item)


def report(negatives: Negatives, parts: Sequence[Examples], drawn: int) -> dict[str, int]:
    """`missing_negatives`: how many more than `drawn` were wanted for `parts`, the rows of the log:
    users had touched too much. `logged_negatives`, where there are any: how many of these look like
    drawn ones, with the label 0 and no other."""
    sizes = ((part, int(part.user.max(initial=0)) + 1) for part in parts)
    wanted = int(sum(negatives.wanted(part, part.user, size).sum() for part, size in sizes))
    like_drawn = sum(_like_drawn(part, negatives.task) for part in parts)
    return {"missing_negatives": wanted - drawn} | (
        {"logged_negatives": like_drawn} if like_drawn else {}
    )


def _like_drawn(part: Examples, task: str) -> int:
    others = [label for name, label in part.labels.items() if name != task]
    is_alone = np.all([np.isnan(label) for label in others], axis=0)
    return int(((part.labels[task] == 0) & is_alone).sum())


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


class ByPopularity:
    """Items in proportion to how many rows each has."""

    def __init__(self, base: OneStream | HashedDraws, rows_of_item: Ints) -> None:
        self._base, self._rows = base, rows_of_item
        self._ends = np.cumsum(rows_of_item)

    def items(self, left: Ints, num_items: int) -> Ints:
        """The item of a uniform row."""
        return np.searchsorted(self._ends, self._base.items(left, int(self._ends[-1])), "right")

    def weights(self, users: Ints, num_items: int) -> NDArray[np.float64]:
        """Exponential with the rows as rates: the least ones are drawn in proportion to the rows,
        one after the other (Efraimidis and Spirakis 2006)."""
        return np.asarray(-np.log1p(-self._base.weights(users, num_items)) / self._rows)


Draws = OneStream | HashedDraws | ByPopularity


def draw(wanted: Ints, taken: Ints, num_items: int, draws: Draws) -> Ints:
    """Keys of new pairs: for user u, min(wanted[u], free items of u) of them, in no set order.

    `taken`: sorted distinct keys that must not be drawn. Items of a user come one after the other
    from what is left, uniformly or by popularity: uniformly, every set of free items of the right
    size is equally likely.
    """
    if num_items == 0:
        return np.empty(0, dtype=np.int64)
    used = np.bincount(taken // num_items, minlength=len(wanted))
    need = np.minimum(wanted, num_items - used)
    # Rejection is fast only while a third of the items stay free; the grid is then no larger
    # than one and a half times the pairs of these users.
    heavy = 3 * (used + need) > 2 * num_items
    drawn = _by_rejection(np.where(heavy, 0, need), taken, num_items, draws)
    left = need - np.bincount(drawn // num_items, minlength=len(need))
    more = _by_grid(left, taken, drawn, num_items=num_items, draws=draws)
    return np.concatenate([drawn, *more])


def drawn_for(user: Ints, positives: Ints, owner: Index, order: NDArray[np.generic]) -> Ints:
    """For each negative, of `user`, one of the `positives` of its user: these in turn.

    `owner`: the user of each positive; `order`: what the positives of a user are sorted by, at
    random, so that neither the items nor which positives come more often follow the log.
    """
    if not len(positives):
        return positives
    by_user = positives[np.lexsort((order, owner))]
    each = np.bincount(owner, minlength=user.max(initial=0) + 1)
    place = np.argsort(user, kind="stable")
    counts = np.bincount(user, minlength=len(each))
    turn = np.arange(len(user)) - np.repeat(np.cumsum(counts) - counts, counts)
    turn %= np.repeat(each, counts)
    turn += np.repeat(np.cumsum(each) - each, counts)
    found = np.empty(len(user), dtype=np.int64)
    found[place] = by_user[turn]
    return found


def _by_rejection(need: Ints, taken: Ints, num_items: int, draws: Draws) -> Ints:
    """The first need[u] distinct free items of a sequence, drawn in rounds.

    By popularity there can be fewer: what is wanted may be rare.
    """
    left = need.copy()
    drawn: list[Ints] = []
    while left.any() and not (isinstance(draws, ByPopularity) and len(drawn) == MOST_ROUNDS):
        users = np.repeat(np.arange(len(left)), left)
        keys = sorted_distinct(users * num_items + draws.items(left, num_items))
        for known in (taken, *drawn):
            keys = keys[~_contained(keys, known)]
        drawn.append(keys)
        left -= np.bincount(keys // num_items, minlength=len(left))
    return np.concatenate([*drawn, np.empty(0, dtype=np.int64)])


def _by_grid(
    need: Ints, taken: Ints, drawn: Ints, *, num_items: int, draws: Draws
) -> Iterator[Ints]:
    """The need[u] items of least random weight among the free ones, for blocks of users."""
    users = np.flatnonzero(need)
    place = np.full(len(need), -1)
    place[users] = np.arange(len(users))
    taken = np.sort(np.concatenate([k[place[k // num_items] >= 0] for k in (taken, drawn)]))
    row = place[taken // num_items]
    block = max(1, GRID_CELLS // num_items)
    for start in range(0, len(users), block):
        some = users[start : start + block]
        weight = draws.weights(some, num_items)
        here = slice(*np.searchsorted(row, [start, start + block]))
        weight[row[here] - start, taken[here] % num_items] = np.inf  # after every free item
        order = np.argsort(weight, axis=1, kind="stable")
        chosen = np.arange(num_items) < need[some][:, None]
        yield (some[:, None] * num_items + order)[chosen]


def _contained(keys: Ints, pool: Ints) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of `keys` are in `pool`; both sorted and distinct."""
    if len(pool) == 0:
        return np.zeros(len(keys), dtype=bool)
    place = np.searchsorted(pool, keys)
    place[place == len(pool)] = 0
    return np.asarray(pool[place] == keys)
