"""Rows as columns: joined, taken, in blocks, and what they cost in memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from data_prep import ids
from data_prep.rows import Raw, rating_labels, rating_tasks
from data_prep.split import protocols
from data_prep.split.negatives import Negatives


def test_the_key_of_a_pair_is_right_beyond_32_bits() -> None:
    user, item = np.array([50_000], dtype=np.int32), np.array([7], dtype=np.int32)
    assert ids.pair_keys(user, item, 60_000).tolist() == [50_000 * 60_000 + 7]  # 3e9 > 2^31


@pytest.mark.parametrize(("protocol", "bound"), [("paper", 100), ("time", 160)])
def test_splitting_a_rating_takes_few_bytes(protocol: str, bound: int) -> None:
    """Its columns and those of its negative have 2 x (4 + 4 + 4 + 4 + 8) = 48 bytes."""
    raw = ratings(users=2_000, each=100)
    tracemalloc.start()
    try:
        prepared = protocols.prepare_rows(
            raw, protocol=protocol, seed=0, command="", to_draw=Negatives(task="watch")
        )
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    written = sum(map(len, prepared.splits.values()))
    assert written == 2 * 200_000
    assert most / 200_000 <= bound


def ratings(users: int, each: int) -> Raw:
    """`each` different items of 1,000 for every user."""
    count = users * each
    user = np.repeat(np.arange(users), each)
    item = (user * 7 + np.tile(np.arange(each), users) * 3) % 1_000
    return Raw(
        name="made up",
        user=pa.array(user),
        item=pa.array(item),
        labels=rating_labels(np.ones(count)),
        timestamp=np.random.default_rng(0).integers(1, 10**9, count),
        tasks=rating_tasks(1.0, 5.0),
        file="none",
    )
