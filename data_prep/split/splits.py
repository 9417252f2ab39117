"""Which split every example belongs to: 0 train, 1 val, 2 test (the order of schema.SPLITS)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from data_prep.ids import Index, Ints
from data_prep.rows import Nanoseconds
from recsys_moe.schema import ConfigError

TRAIN, VAL, TEST = 0, 1, 2
SHARE = re.compile(r"[0-9]{0,9}\.?[0-9]{1,30}|[0-9]{1,9}/[1-9][0-9]{0,8}", re.ASCII)
"""Of --fractions. An exponent could ask for more digits than there is memory."""
Splits = NDArray[np.int8]


@dataclass(frozen=True, kw_only=True)
class Holdout:
    """Two steps: `test` of all rows, then `val` of the rows that are left."""

    test: float | Fraction
    val: float | Fraction

    @classmethod
    def of(cls, fractions: str | None, default: Holdout) -> Holdout:
        """From "TRAIN,VAL,TEST", as in "0.8,0.1,0.1"; None is the default. Raises ConfigError."""
        if fractions is None:
            return default
        parts = [part.strip() for part in fractions.split(",")]
        train = val = test = Fraction(0)
        if len(parts) == 3 and all(map(SHARE.fullmatch, parts)):
            train, val, test = map(Fraction, parts)  # exact, where floats are not
        if min(train, val, test) <= 0 or train + val + test != 1:
            raise ConfigError(
                "--fractions must be three numbers above 0 that add up to 1, of train, val and "
                f"test, as in 0.8,0.1,0.1, got {fractions!r}"
            )
        return cls(test=test, val=val / (1 - test))


MOVIELENS = Holdout(test=0.1, val=0.125)
BOOKS = Holdout(test=0.15, val=0.15 / 0.85)


def stratified(classes: NDArray[np.int8], holdout: Holdout, rng: np.random.Generator) -> Splits:
    """A random split in which every class (0, 1, ...) has its share of each part.

    Sizes follow scikit-learn's train_test_split(stratify=...): the held-out part is rounded up,
    and a class's share of the rest by largest remainder.
    """
    counts = np.bincount(classes)
    rest = allocate(counts, len(classes) - math.ceil(holdout.test * len(classes)))
    size = int(rest.sum())
    train = allocate(rest, size - math.ceil(holdout.val * size))
    shuffled = rng.permutation(len(classes))
    split = np.full(len(classes), TEST, dtype=np.int8)
    for one in range(len(counts)):
        members = shuffled[classes[shuffled] == one]
        split[members[: rest[one]]] = VAL
        split[members[: train[one]]] = TRAIN
    return split


def allocate(counts: Ints, total: int) -> Ints:
    """`total` shared out in proportion to `counts`: floors, then the largest remainders.

    Of equal remainders the first class is served first, where scikit-learn draws lots.
    """
    if total == 0:
        return np.zeros_like(counts)
    exact = counts / counts.sum() * total
    share: Ints = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(share - exact, kind="stable")
    share[by_remainder[: total - int(share.sum())]] += 1
    return share


def moments(seconds: Ints, nanoseconds: Nanoseconds | None) -> Ints:
    """Numbers in the order of the times, equal where these are; without fractions the seconds."""
    if nanoseconds is None or not nanoseconds.any():
        return seconds
    order = np.lexsort((nanoseconds, seconds))
    is_later = (np.diff(seconds[order]) != 0) | (np.diff(nanoseconds[order]) != 0)
    ranks = np.zeros(len(seconds), dtype=np.int64)
    ranks[order[1:]] = np.cumsum(is_later)
    return ranks


def by_time(timestamp: Ints, holdout: Holdout = MOVIELENS) -> Splits:
    """The oldest rows (78.75%) train, the newest (10%) test; equal times stay in one split.

    The cuts are the timestamps at those two ranks; rows at a cut belong to the later split.
    """
    ordered = np.sort(timestamp)
    shares = ((1 - holdout.test) * (1 - holdout.val), 1 - holdout.test)
    first_val, first_test = (ordered[math.floor(share * len(ordered))] for share in shares)
    after = (timestamp >= first_val).astype(np.int8)
    split: Splits = after + (timestamp >= first_test)
    return split


def events(user: Index, timestamp: Ints) -> Index:
    """The place, from 0, of each row among those of its user: by time, then in the order given."""
    order = np.lexsort((timestamp, user))
    counts = np.bincount(user)
    place = np.empty(len(user), dtype=np.int32)
    place[order] = np.arange(len(user)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place


def leave_last(user: Index, event: Index) -> Splits:
    """Each user's last event is test, the one before val; users with fewer than 3 events train."""
    counts = np.bincount(user)[user]
    left = np.where(counts >= 3, counts - event, 3)
    split: Splits = np.array([TRAIN, TEST, VAL, TRAIN], dtype=np.int8)[np.minimum(left, 3)]
    return split
