"""The protocol `hash`: what happens to a row depends on the seed and on its user and item alone.

So the rows of some users can be prepared without those of the others, in any order and on any
machine, and a pair keeps its split when the data grow. The shares of the splits are expectations.
Negatives of a user depend on the user's rows and on the known items.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data_prep.ids import Ints, sorted_distinct
from data_prep.rows import Examples, joined, unlabelled
from data_prep.split import negatives, randomness
from data_prep.split.negatives import HashedDraws
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
    rows: Examples, hashes: IdHashes, *, negative_task: str | None, holdout: Holdout, seed: int
) -> Placed:
    """All rows of some users (in the order of the files), their negatives, split and order."""
    if negative_task is not None:
        rows = joined([rows, _negatives(rows, hashes, negative_task, seed)])
    pair = (hashes.user[rows.user], hashes.item[rows.item])
    key = randomness.mix(randomness.key(seed, "order"), *pair)
    order = np.argsort(key, kind="stable")
    split = _split(randomness.mix(randomness.key(seed, "split"), *pair)[order], holdout)
    return Placed(rows.take(order), split, key[order])


def missing_negatives(rows: Examples, num_placed: int, task: str | None) -> int:
    """How many were wanted for `rows` but not there, as users had touched too much."""
    wanted = 0 if task is None else int((rows.labels[task] == 1).sum())
    return wanted - (num_placed - len(rows))


def _split(hashed: Hashes, holdout: Holdout) -> Splits:
    """`test` of all rows, then `val` of the rest, as ranges of the hash."""
    held_out = holdout.test + (1 - holdout.test) * holdout.val
    split = np.full(len(hashed), TRAIN, dtype=np.int8)
    split[hashed < np.uint64(held_out * 2**64)] = VAL
    split[hashed < np.uint64(holdout.test * 2**64)] = TEST
    return split


def _negatives(rows: Examples, hashes: IdHashes, task: str, seed: int) -> Examples:
    users = sorted_distinct(rows.user)
    user, num_items = np.searchsorted(users, rows.user), len(hashes.item)
    wanted = np.bincount(user[rows.labels[task] == 1], minlength=len(users))
    taken = sorted_distinct(user * num_items + rows.item)
    draws = HashedDraws(randomness.mix(randomness.key(seed, "negatives"), hashes.user[users]))
    keys: Ints = negatives.draw(wanted, taken, num_items, draws)
    return unlabelled(users[keys // num_items], keys % num_items, rows, task)
