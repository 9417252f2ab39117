"""The protocol `hash`: what happens to a row depends on the seed and on its user and item alone.

So the rows of some users can be prepared without those of the others, in any order and on any
machine, and a pair keeps its split when the data grow. The shares of the splits are expectations.
Negatives of a user depend on the user's rows and on the known items.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data_prep.ids import Ints, pair_keys, sorted_distinct
from data_prep.rows import Examples, joined, unlabelled
from data_prep.split import negatives, randomness
from data_prep.split.negatives import HashedDraws, Negatives
from data_prep.split.randomness import Hashes
from data_prep.split.splits import TEST, TRAIN, VAL, Holdout, Splits


class IdHashes(NamedTuple):
    """By dense index: of every user and of every item."""

    user: Hashes
    item: Hashes


class Placed(NamedTuple):
    """Rows in the order of their keys, with their splits."""

    rows: Examples
    split: Splits
    key: Hashes


def place(
    rows: Examples, hashes: IdHashes, *, to_draw: Negatives | None, holdout: Holdout, seed: int
) -> Placed:
    """All rows of some users (in the order of the files), their negatives, split and order.

    Negatives by popularity need the rows of all users.
    """
    if to_draw is not None:
        rows = joined([rows, _negatives(rows, hashes, to_draw, seed)])
    pair = (hashes.user[rows.user], hashes.item[rows.item])
    key = randomness.mix(randomness.key(seed, "order"), *pair)
    order = np.argsort(key, kind="stable")
    split = _split(randomness.mix(randomness.key(seed, "split"), *pair)[order], holdout)
    return Placed(rows.take(order), split, key[order])


def _split(hashed: Hashes, holdout: Holdout) -> Splits:
    """`test` of all rows, then `val` of the rest, as ranges of the hash."""
    held_out = holdout.test + (1 - holdout.test) * holdout.val
    split = np.full(len(hashed), TRAIN, dtype=np.int8)
    split[hashed < np.uint64(int(held_out * 2**64))] = VAL
    split[hashed < np.uint64(int(holdout.test * 2**64))] = TEST
    return split


def _negatives(rows: Examples, hashes: IdHashes, to_draw: Negatives, seed: int) -> Examples:
    users = sorted_distinct(rows.user)
    user, num_items = np.searchsorted(users, rows.user), len(hashes.item)
    taken = sorted_distinct(pair_keys(user, rows.item, num_items))
    each = HashedDraws(randomness.mix(randomness.key(seed, "negatives"), hashes.user[users]))
    draws = to_draw.draws(each, np.bincount(rows.item, minlength=num_items))
    wanted = to_draw.wanted(rows, user, len(users))
    keys: Ints = negatives.draw(wanted, taken, num_items, draws)
    user, item = users[keys // num_items], keys % num_items
    positives = to_draw.positives(rows)
    owner = rows.user[positives]
    pair = (hashes.user[owner], hashes.item[rows.item[positives]])
    order = randomness.mix(randomness.key(seed, "drawn for"), *pair)
    sources = negatives.drawn_for(user, positives, owner, order)
    return unlabelled(user, item, rows, to_draw.task, sources)
