"""Negatives of positives with a time: items that the log had by then and the user had not.

A negative of a positive at t is drawn among the items with a row at or before t, without those that
its user touched at or before t, uniformly or by how many rows they had by then. What is drawn
depends on the user, the event and these rows, so no row after t has a part in it. Axes: P
positives, S negatives, I items.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data_prep.ids import Index, Ints, one_per_value, pair_keys, sorted_distinct
from data_prep.rows import Examples, unlabelled
from data_prep.split import randomness
from data_prep.split.negatives import MOST_ROUNDS, Negatives
from data_prep.split.randomness import Hashes, mix

SLOTS = np.uint64(1 << 20)
"""Above the number of negatives of a positive."""


@dataclass(frozen=True, kw_only=True)
class History:
    """Who touched what since when, and which items there were, by the rank of times."""

    times: Ints
    """Distinct, ascending; a rank is a place in it."""
    num_items: int
    pair: Ints
    """Key of every (user, item), ascending."""
    since: Index
    """The rank of its first row."""
    touch: Ints
    """user * len(times) + since, ascending."""
    item: Index
    """Items by the ranks of their first rows."""
    born: Index
    """These ranks."""

    @classmethod
    def of(cls, rows: Examples, num_items: int) -> History:
        times = sorted_distinct(rows.timestamp)
        rank = np.searchsorted(times, rows.timestamp).astype(np.int32)
        pair, since = _first(pair_keys(rows.user, rows.item, num_items), rank)
        item, born = _first(rows.item, rank)
        order = np.argsort(born, kind="stable")
        touch = pair // num_items
        touch *= len(times)
        touch += since
        touch.sort()
        return cls(
            times=times,
            num_items=num_items,
            pair=pair,
            since=since,
            touch=touch,
            item=item[order].astype(np.int32),
            born=born[order],
        )

    def touched(self, user: Index, rank: Index) -> Ints:
        """How many items each user touched at or before a rank."""
        start = user.astype(np.int64) * len(self.times)
        ends = (
            np.searchsorted(self.touch, start + rank, "right"),
            np.searchsorted(self.touch, start),
        )
        return np.asarray(ends[0] - ends[1])

    def has_touched(self, user: Index, item: Index, rank: Index) -> NDArray[np.bool_]:
        """Whether each user touched an item at or before a rank."""
        key = pair_keys(user, item, self.num_items)
        place = np.minimum(np.searchsorted(self.pair, key), len(self.pair) - 1)
        return np.asarray((self.pair[place] == key) & (self.since[place] <= rank))

    def items_of(self, user: int, rank: int) -> Index:
        """What a user touched at or before a rank."""
        first, last = np.searchsorted(
            self.pair, [user * self.num_items, (user + 1) * self.num_items]
        )
        mine = slice(first, last)
        return (self.pair[mine] % self.num_items)[self.since[mine] <= rank].astype(np.int32)


def _first(key: NDArray[np.generic], rank: Index) -> tuple[Ints, Index]:
    """The distinct keys, ascending, and the least rank of each."""
    order = np.lexsort((rank, key))
    key = key[order]
    is_new = np.ones(len(key), dtype=bool)
    is_new[1:] = key[1:] != key[:-1]
    return key[is_new].astype(np.int64, copy=False), rank[order[is_new]]


@dataclass(frozen=True, kw_only=True)
class Positives:
    """Of a split, with what their negatives depend on."""

    row: Ints
    user: Index
    rank: Index
    seed: Hashes
    count: Ints
    """Negatives of each."""


def draw(
    rows: Examples,
    so_far: Examples,
    user_hash: Hashes,
    *,
    num_items: int,
    to_draw: Negatives,
    seed: int,
) -> Examples:
    """Negatives for the positives of `rows`, of items of the rows `so_far`, which have those too.

    `user_hash`: by user. Fewer than wanted where too few items are free.
    """
    history = History.of(so_far, num_items)
    positives = _positives(rows, history, user_hash, to_draw, seed)
    pool = Pool.of(so_far, history, to_draw)
    place, item = _drawn(positives, history, pool)
    row = positives.row[place]
    return unlabelled(rows.user[row].astype(np.int64), item, rows, to_draw.task, row)


def _positives(
    rows: Examples, history: History, user_hash: Hashes, to_draw: Negatives, seed: int
) -> Positives:
    row = np.flatnonzero(rows.labels[to_draw.task] == 1)
    assert rows.event is not None
    user, event = rows.user[row], rows.event[row].astype(np.uint64)
    rank = np.searchsorted(history.times, rows.timestamp[row]).astype(np.int32)
    free = np.searchsorted(history.born, rank, "right") - history.touched(user, rank)
    order = mix(randomness.key(seed, "drawn for"), user_hash[user], event)
    count = np.minimum(_shares(user, order, to_draw.wanted(rows, rows.user, len(user_hash))), free)
    own = mix(randomness.key(seed, "negatives"), user_hash[user], event)
    return Positives(row=row, user=user, rank=rank, seed=own, count=count)


def _shares(user: Index, order: Hashes, wanted: Ints) -> Ints:
    """How many of the `wanted` negatives of its user each positive gets: as many as any other one,
    or one more for the first in `order`."""
    by_user = np.lexsort((order, user))
    each = np.bincount(user, minlength=len(wanted))
    turn = np.arange(len(user)) - np.repeat(np.cumsum(each) - each, each)
    least, more = np.divmod(wanted, np.maximum(each, 1))
    count = np.empty(len(user), dtype=np.int64)
    mine = user[by_user]
    count[by_user] = least[mine] + (turn < more[mine])
    return count


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Items by time, to draw from those up to a rank: each once, or once for each of its rows."""

    item: Index
    rank: Index
    is_once: bool

    @classmethod
    def of(cls, rows: Examples, history: History, to_draw: Negatives) -> Pool:
        if to_draw.distribution == "uniform":
            return cls(item=history.item, rank=history.born, is_once=True)
        rank = np.searchsorted(history.times, rows.timestamp).astype(np.int32)
        order = np.lexsort((rows.item, rank))
        return cls(item=rows.item[order], rank=rank[order], is_once=False)

    def size(self, rank: Index) -> Ints:
        """How much of it there is at each rank."""
        return np.searchsorted(self.rank, rank, "right")


def _drawn(positives: Positives, history: History, pool: Pool) -> tuple[Ints, Ints]:
    """Positive and item of every negative, the items of a positive one after the other from what
    is left."""
    size = pool.size(positives.rank).astype(np.uint64)
    owner = np.repeat(np.arange(len(positives.row)), positives.count)
    slot = np.arange(len(owner)) - np.repeat(
        np.cumsum(positives.count) - positives.count, positives.count
    )
    several = bool((positives.count > 1).any())
    found: list[Ints] = [np.empty(0, dtype=np.int64)]
    for attempt in range(MOST_ROUNDS):
        if not len(owner):
            break
        number = np.uint64(attempt) * SLOTS + slot.astype(np.uint64)
        half = mix(positives.seed[owner], number) >> np.uint64(32)
        item = pool.item[((half * size[owner]) >> np.uint64(32)).astype(np.int64)]
        left = history.has_touched(positives.user[owner], item, positives.rank[owner])
        keys = pair_keys(owner, item, history.num_items)
        if several:
            left |= np.isin(keys, np.concatenate(found))
            open_ = np.flatnonzero(~left)
            left[:] = True
            left[open_[one_per_value(keys[open_])]] = False
        found.append(keys[~left])
        owner, slot = owner[left], slot[left]
    found += _exactly(owner, np.concatenate(found), positives, history, pool)
    owner, item = np.divmod(np.concatenate(found), history.num_items)
    return owner, item


def _exactly(
    owner: Ints, found: Ints, positives: Positives, history: History, pool: Pool
) -> Iterator[Ints]:
    """Keys of the negatives that rejection did not find: where most items are touched.

    The items of least exponential weight, with their rows as rates (Efraimidis and Spirakis 2006).
    """
    rows_I, place = np.zeros(history.num_items), 0
    found, owners = np.sort(found), sorted_distinct(owner)
    need = np.bincount(owner, minlength=len(positives.row))[owners]
    by_time = np.argsort(positives.rank[owners], kind="stable")
    for one, count in zip(owners[by_time], need[by_time], strict=True):
        rank = positives.rank[one]
        end = int(pool.size(rank))
        np.add.at(rows_I, pool.item[place:end], 1)
        place = end
        is_free = rows_I > 0
        is_free[history.items_of(int(positives.user[one]), int(rank))] = False
        mine = slice(*np.searchsorted(found, np.array([one, one + 1]) * history.num_items))
        is_free[found[mine] % history.num_items] = False
        free = np.flatnonzero(is_free)
        share = (mix(positives.seed[one], ~free.astype(np.uint64)) >> np.uint64(11)) * 2.0**-53
        weight = -np.log1p(-share) / rows_I[free]
        chosen = free[np.argsort(weight, kind="stable")[:count]]
        yield one * history.num_items + chosen
