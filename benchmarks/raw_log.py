"""A made-up log, drawn in pieces: Zipf items, lognormal users, clusters of taste, ratings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

CLUSTERS, OWN = 20, 0.5
"""Clusters of users and items, and how often a user takes an item of the own one."""


class Log:
    """Draws interactions of a made-up log. Axes: U users, I items, N rows."""

    def __init__(self, rows: int) -> None:
        self.users, self.items = max(rows // 100, 100), max(rows // 200, CLUSTERS)
        rng = np.random.default_rng(0)
        self.until_U = np.cumsum(rng.lognormal(0.0, 1.0, self.users))
        self.until_I = np.cumsum(1.0 / (np.arange(self.items) + 10.0))
        """By rank: Zipf's law, flat at its head."""
        self.id_I = rng.permutation(self.items)
        self.name_U = pa.array([f"u{number:07d}" for number in range(self.users)])
        self.mood_U, self.quality_I = (rng.normal(0, 0.4, n) for n in (self.users, self.items))

    def rows(self, rng: np.random.Generator, size: int) -> pa.Table:
        """One of OWN items has the cluster of the user, and about the rank that was drawn."""
        user, item = _drawn(self.until_U, rng, size), _drawn(self.until_I, rng, size)
        of_taste = item - item % CLUSTERS + user % CLUSTERS
        is_own = (rng.random(size) < OWN) & (of_taste < self.items)
        item = np.where(is_own, of_taste, item)
        liked = 0.6 * (item % CLUSTERS == user % CLUSTERS) + self.mood_U[user]
        rating = np.rint(3.2 + liked + self.quality_I[item] + rng.normal(0, 0.7, size))
        columns = {"user": self.name_U.take(pa.array(user)), "item": pa.array(self.id_I[item])}
        columns["stars"] = pa.array(rating.clip(1, 5).astype(np.float32))
        columns["time"] = pa.array(rng.integers(1_600_000_000, 1_700_000_000, size))
        return pa.table(columns)


def _drawn(until: NDArray[Any], rng: np.random.Generator, size: int) -> NDArray[np.int64]:
    return np.searchsorted(until, rng.random(size) * until[-1], side="right").clip(
        max=len(until) - 1
    )
