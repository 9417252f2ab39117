"""Age and popularity of items at a time, from what lies strictly before it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.data.events import EventLog, TimedRows
from recsys_moe.data.item_past import DAY, ItemPast, Known

ITEMS = 4


def past(events: list[tuple[int, int]], half_life: float = 1.0) -> ItemPast:
    """Of (item, second) pairs, each of a user of its own."""
    item, time = (torch.tensor([one[n] for one in events], dtype=torch.long) for n in (0, 1))
    rows = TimedRows(torch.arange(len(events)), item, torch.ones(len(events)), time, item * 0)
    return ItemPast(EventLog(rows, len(events)), ITEMS, half_life)


def at(found: ItemPast | Known, item: int, time: float) -> tuple[float, float]:
    age_B, popularity_B = found.at(torch.tensor([item]), torch.tensor([time]).double())
    return float(age_B), float(popularity_B)


def test_popularity_is_a_share_of_decayed_counts_by_hand() -> None:
    day = int(DAY)
    found = past([(0, day), (1, 2 * day), (0, 3 * day), (1, 9 * day)])
    # At day 4: item 0 has 2^-3 + 2^-1 = 0.625, item 1 has 2^-2 = 0.25; 4 items share 0.875.
    age, popularity = at(found, 0, 4 * day)
    assert age == 3 * day
    assert popularity == pytest.approx(4 * 0.625 / 0.875)
    assert at(found, 1, 4 * day) == pytest.approx((2 * day, 4 * 0.25 / 0.875))
    # The events of a second are not before it.
    assert at(found, 0, day) == pytest.approx((math.nan, math.nan), nan_ok=True)
    assert at(found, 0, 3 * day) == pytest.approx((2 * day, 4 * 0.25 / (0.25 + 0.5)))
    assert at(found, 0, 3 * day + 0.5)[1] > at(found, 0, 3 * day)[1]


def test_items_without_an_event_before_and_times_unknown_have_neither() -> None:
    found = past([(0, 5)])
    for item, time in ((1, 9), (ITEMS, 9), (ITEMS + 3, 9), (0, 5), (0, math.nan)):
        assert all(math.isnan(value) for value in at(found, item, time))
    assert at(found, ~0, 9) == at(found, 0, 9)  # a hidden id is the item
    assert all(math.isnan(value) for value in at(past([]), 0, 9))
    assert all(math.isnan(value) for value in at(past([]).known(), 0, 9))


def naive(events: list[tuple[int, int]], item: int, time: float) -> tuple[float, float]:
    mine = [t for i, t in events if i == item and t < time]
    if not mine:
        return math.nan, math.nan
    counts = [sum(2 ** -((time - t) / DAY) for i, t in events if t < time and i == one)
              for one in range(ITEMS)]  # fmt: skip
    return time - min(mine), ITEMS * counts[item] / sum(counts)


@given(
    st.lists(st.tuples(st.integers(0, ITEMS - 1), st.integers(0, 9 * int(DAY))), max_size=12),
    st.integers(0, ITEMS - 1),
    st.integers(-5, 10 * int(DAY)),
)
def test_one_search_a_row_says_the_same_as_loops(
    events: list[tuple[int, int]], item: int, time: int
) -> None:
    assert at(past(events), item, time) == pytest.approx(
        naive(events, item, time), rel=1e-5, nan_ok=True
    )


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 10**6)), min_size=1, max_size=9))
def test_a_model_folder_keeps_what_holds_after_the_last_event(
    events: list[tuple[int, int]],
) -> None:
    found, later = past(events), 2 * 10**6
    for item in range(ITEMS + 1):
        whole = at(found, item, later)
        assert at(found.known(), item, later) == pytest.approx(whole, rel=1e-6, nan_ok=True)
        assert at(found.known(), ~item, later) == pytest.approx(whole, rel=1e-6, nan_ok=True)
        end = float(found.known().end) + 1  # which a row without a time is about
        assert at(found.known(), item, math.nan) == pytest.approx(
            at(found.known(), item, end), nan_ok=True
        )


def test_a_model_folder_counts_the_last_second_of_times_of_today() -> None:
    """In float32 it would be up to a minute away."""
    last = 1_700_000_041
    known = past([(0, last - 60), (1, last)], half_life=60 / DAY).known()
    assert known.popularity[:2].tolist() == pytest.approx([4 / 3, 8 / 3])
    assert known.total is not None and float(known.total) == 1.5


def test_a_long_log_with_a_short_half_life_stays_finite() -> None:
    year = 366 * int(DAY)
    found = past([(0, 0), (1, 20 * year)], half_life=1 / 24)
    assert at(found, 0, 21 * year)[1] == 0.0
    assert at(found, 1, 21 * year)[1] == ITEMS
