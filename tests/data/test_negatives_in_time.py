"""Negatives that are drawn anew for rows with times: which items, by which law."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.data.negatives import ResampledNegatives
from recsys_moe.data.rows import Columns
from recsys_moe.data.touched import LAST, MeanRatesByTime, Touched, pair_keys
from recsys_moe.schema import Schema

ITEMS = 40
"""Of the prepared data."""


@pytest.fixture(scope="module")
def schema(prepared: Path) -> Schema:
    return Schema.load(prepared)


def log(rows: list[tuple[int, int, int, int]]) -> Columns:
    """Rows of user, item, time and whether they are positive; those also have a rating."""
    user, item, time, positive = (torch.tensor(column) for column in zip(*rows, strict=True))
    rating = torch.where(positive == 1, 3.0, torch.nan)
    labels = torch.stack([positive.float(), rating], 1)
    return Columns(user.int(), item.int(), labels, time=time.double())


def is_free(rows: Columns, user: int, item: int, time: float) -> bool:
    """The naive twin of `Touched.is_free`."""
    positives = [
        (int(u), int(i), float(t))
        for u, i, t, label in zip(rows.user, rows.item, rows.time, rows.labels[:, 0], strict=True)
        if label == 1
    ]
    is_there = any(i == item and t <= time for _, i, t in positives)
    return is_there and not any((u, i) == (user, item) and t <= time for u, i, t in positives)


events = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, ITEMS), st.integers(0, 9), st.integers(0, 1)),
    min_size=1,
    max_size=40,
)


@given(events=events, seed=st.integers(0, 2**31), user_power=st.sampled_from([1.0, 0.0]))
def test_an_item_is_drawn_that_was_there_and_that_its_user_had_not_touched_by_then(
    schema: Schema, events: list[tuple[int, int, int, int]], seed: int, user_power: float
) -> None:
    rows = log(events)
    fresh = ResampledNegatives(rows, schema, user_power=user_power).drawn(rows, seed)
    assert fresh.time is not None and rows.time is not None
    for before, after, user, time in zip(
        rows.item, fresh.item, fresh.user, fresh.time, strict=True
    ):
        assert after == before or is_free(rows, int(user), int(after), float(time))
    positive = rows.labels[:, 0] == 1
    assert torch.equal(fresh.item[positive], rows.item[positive])
    if user_power == 1:
        assert torch.equal(fresh.time, rows.time) and torch.equal(fresh.user, rows.user)


def test_every_item_that_is_free_by_then_is_as_likely(schema: Schema) -> None:
    """At 5 there are items 0 to 9, and 0 to 3 are touched: each of six in 1/6 of 6,000 draws, 1,000
    times with a deviation of sqrt(6000 x 1/6 x 5/6) = 29. Item 4 is touched later."""
    touched = [(0, item, 1, 1) for item in range(4)]
    later = [(0, 4, 8, 1), *((1, item, 9, 1) for item in range(10, 20))]
    others = [(1, item, 5, 1) for item in range(10)]
    rows = log([*touched, *later, *others, *[(0, 7, 5, 0)] * 6000])
    drawn = ResampledNegatives(rows, schema).drawn(rows, 0).item[-6000:]
    counts = torch.bincount(drawn, minlength=ITEMS)
    assert counts[4:10].sub(1000).abs().max() < 4 * 29
    assert counts[4:10].sum() == 6000


def test_later_rows_change_nothing_of_the_law_and_a_row_without_a_free_item_stays(
    schema: Schema,
) -> None:
    """User 0 has both items that there are at 5; what comes at 6 is no help."""
    rows = log([(0, 0, 1, 1), (0, 1, 2, 1), (1, 2, 6, 1), (0, 9, 5, 0)])
    assert ResampledNegatives(rows, schema).drawn(rows, 0).item[3] == 9


@given(events=events, power=st.sampled_from([0.0, 0.75]))
def test_mean_rates_are_those_of_the_free_items(
    schema: Schema, events: list[tuple[int, int, int, int]], power: float
) -> None:
    rows = log([(*event[:3], 1) for event in events])
    assert rows.time is not None
    keys = pair_keys(rows.user.long(), rows.item.long(), ITEMS)
    touched = Touched([(keys, rows.time.long())], ITEMS)
    rate_I = (torch.arange(ITEMS).double() + 1) ** power
    rates = MeanRatesByTime(touched, rate_I)
    for user in range(5):
        for time in range(-1, 11):
            there = [
                i for i in range(ITEMS) if touched.born_I is not None and touched.born_I[i] <= time
            ]
            free = [item for item in there if is_free(rows, user, item, time)] or there
            mean = rates.of(torch.tensor([user]), torch.tensor([time]))
            expected = rate_I[free].mean() if free else torch.ones(()).double()
            assert torch.allclose(mean[0], expected, atol=1e-9)


def test_offsets_are_those_of_the_items_of_the_time(schema: Schema) -> None:
    """At 5 items 0 (two rows) and 1 (one row) are free for user 2: rates 3 and 2 of mean 2.5. At 9
    item 2 (one row) is too: rates 3, 2, 2 of mean 7 / 3."""
    before = [(0, 0, 1, 1), (1, 0, 2, 1), (1, 1, 3, 1), (1, 2, 7, 1)]
    rows = log([*before, (2, 0, 5, 0), (2, 1, 9, 0)])
    drawn = ResampledNegatives(rows, schema, power=1.0)
    asked = replace(rows, item=torch.tensor([0, 0, 1, 2, 0, 1]).int())
    offset = drawn._offsets(asked)
    assert offset is not None
    assert torch.allclose(offset[-2:, 0].exp(), torch.tensor([3 / 2.5, 2 / (7 / 3)]))


def test_an_item_without_a_row_never_came() -> None:
    touched = Touched([(torch.tensor([0, 1]), torch.tensor([3, 4]))], 3)
    assert touched.born_I is not None
    assert touched.born_I.tolist() == [3, 4, LAST, LAST]
