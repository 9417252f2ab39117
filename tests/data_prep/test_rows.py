"""Rows as columns: joined, taken, in blocks, and what they cost in memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import ids
from data_prep.read.ratings import rating_labels, rating_tasks
from data_prep.rows import Examples, Raw, joined
from data_prep.split import protocols
from data_prep.split.negatives import Negatives


def rows(count: int, first: int = 0) -> Examples:
    """Each row has numbers of its own in all columns."""
    number = np.arange(first, first + count)
    return Examples(
        user=number.astype(np.int32),
        item=(number + 1000).astype(np.int32),
        labels={"rating": (number / 2).astype(np.float32)},
        timestamp=number + 10**9,
        weight=(number / 4).astype(np.float32),
        context=pa.table({"feature:hour": number}),
    )


def cells(part: Examples) -> list[object]:
    assert part.weight is not None and part.context is not None
    return [
        part.user.tolist(),
        part.item.tolist(),
        part.labels["rating"].tolist(),
        part.timestamp.tolist(),
        part.weight.tolist(),
        part.context.to_pydict(),
    ]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_some_rows_of_joined_parts_are_those_of_all_of_them(sizes: list[int]) -> None:
    starts = np.cumsum([0, *sizes])
    parts = [rows(size, int(start)) for size, start in zip(sizes, starts, strict=False)]
    places = np.random.default_rng(sum(sizes)).permutation(sum(sizes))[: 1 + sum(sizes) // 2]
    assert cells(joined(parts)) == cells(rows(sum(sizes)))
    assert cells(joined(parts, places)) == cells(rows(sum(sizes)).take(places))


@given(st.integers(1, 20), st.integers(1, 7))
def test_blocks_are_all_rows_in_their_order(count: int, size: int) -> None:
    found = list(rows(count).blocks(size))
    assert [len(block) for block in found[:-1]] == [size] * (len(found) - 1)
    assert cells(joined(found)) == cells(rows(count))


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
