"""Negatives: exact counts, nothing taken, uniform, the same under the same seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.split import negatives
from data_prep.split.negatives import HashedDraws, OneStream
from data_prep.split.randomness import key, mix, stream
from tests.data_prep.samples import chi_square


@st.composite
def interactions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """(wanted per user, taken keys, items): some users have nothing, some nearly everything."""
    users, items = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    taken = draw(st.sets(st.integers(0, users * items - 1)))
    wanted = draw(st.lists(st.integers(0, items), min_size=users, max_size=users))
    return np.array(wanted), np.array(sorted(taken), dtype=np.int64), items


@given(interactions(), st.integers(0, 3))
def test_each_user_gets_the_wanted_number_or_all_that_is_free(
    case: tuple[np.ndarray, np.ndarray, int], seed: int
) -> None:
    wanted, taken, items = case
    drawn = negatives.draw(wanted, taken, items, OneStream(stream(seed, "negatives")))
    free = items - np.bincount(taken // items, minlength=len(wanted))
    got = np.bincount(drawn // items, minlength=len(wanted))
    assert got.tolist() == np.minimum(wanted, free).tolist()
    assert len(set(drawn.tolist())) == len(drawn)
    assert set(drawn.tolist()).isdisjoint(taken.tolist())
    again = negatives.draw(wanted, taken, items, OneStream(stream(seed, "negatives")))
    assert drawn.tolist() == again.tolist()


@pytest.mark.parametrize("kind", ["one stream", "hashed"])
@pytest.mark.parametrize(
    ("positives", "wanted"),
    [(2, 2), (2, 7), (7, 2)],
    ids=["light user, rejection", "most of the free items, grid", "heavy user, grid"],
)
def test_every_free_item_is_drawn_equally_often(positives: int, wanted: int, kind: str) -> None:
    items, users = 12, 4000
    each = mix(key(0, "uniform"), np.arange(users, dtype=np.uint64))
    draws = HashedDraws(each) if kind == "hashed" else OneStream(stream(0, "uniform"))
    taken = (np.arange(users)[:, None] * items + np.arange(positives)).ravel()
    drawn = negatives.draw(np.full(users, wanted), taken, items, draws)
    counts = np.bincount(drawn % items, minlength=items)[positives:]
    assert counts.sum() == users * wanted
    # 12 - positives cells, so at most 9 degrees of freedom: 99.99% of draws stay below 33.7.
    # Sampling without replacement only makes the counts more even than that.
    assert chi_square(counts, users * wanted / (items - positives)) < 33.7


def test_every_pair_of_items_is_drawn_equally_often() -> None:
    users, items = 6000, 5
    drawn = negatives.draw(
        np.full(users, 2), np.array([], np.int64), items, OneStream(stream(1, "pairs"))
    )
    first, second = np.sort(drawn).reshape(users, 2).T  # sorted keys: two per user, in order
    pairs = np.bincount((first % items) * items + second % items)
    pairs = pairs[pairs > 0]
    assert len(pairs) == 10  # 5 * 4 / 2
    # 9 degrees of freedom: 33.7 is the 99.99% point
    assert chi_square(pairs, users / 10) < 33.7


def test_blocks_of_heavy_users_do_not_change_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(negatives, "GRID_CELLS", 25)  # two users of 10 items at a time
    taken = np.array([u * 10 + i for u in range(7) for i in range(u)])
    drawn = negatives.draw(np.full(7, 10), taken, 10, OneStream(stream(0, "blocks")))
    assert np.bincount(drawn // 10).tolist() == [10 - u for u in range(7)]
    assert set(drawn.tolist()).isdisjoint(taken.tolist())


def test_no_items_give_no_negatives() -> None:
    assert (
        len(negatives.draw(np.array([3]), np.array([], np.int64), 0, OneStream(stream(0, "none"))))
        == 0
    )
