"""Splits: scikit-learn's counts, the published sizes, time, and the last two rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from data_prep import table
from data_prep.split import splits
from data_prep.split.randomness import stream
from data_prep.split.splits import TEST, TRAIN, VAL, Holdout
from recsys_moe.schema import SPLITS
from tests.data_prep.samples import IDS, columns, frame, save


def sizes(split: np.ndarray) -> list[int]:
    return np.bincount(split, minlength=3).tolist()


def test_the_published_movielens_counts_follow_from_the_rule() -> None:
    classes = np.repeat([0, 1], [999_287, 1_000_209])
    split = splits.stratified(classes, splits.MOVIELENS, stream(0, "split"))
    # test: ceil(0.1 * 1,999,496) = 199,950; val: ceil(0.125 * 1,799,546) = 224,944
    assert sizes(split) == [1_574_602, 224_944, 199_950]
    assert sizes(split[classes == 1]) == [787_664, 112_524, 100_021]


def test_the_published_books_sizes_follow_from_the_rule() -> None:
    split = splits.stratified(np.zeros(556_724, int), splits.BOOKS, stream(0, "split"))
    # test: ceil(0.15 * 556,724 = 83,508.6); val: ceil(0.15 / 0.85 * 473,215 = 83,508.5)
    assert sizes(split) == [389_706, 83_509, 83_509]


@given(st.lists(st.integers(3, 400), min_size=1, max_size=3), st.sampled_from([0.1, 0.15, 0.2]))
def test_class_counts_equal_those_of_scikit_learn(counts: list[int], share: float) -> None:
    total = sum(counts)
    held_out = int(np.ceil(share * total))
    assume(held_out >= len(counts))  # scikit-learn refuses less
    kept_exact = np.array(counts) / total * (total - held_out)
    remainders = kept_exact - np.floor(kept_exact)
    assume(len(set(np.round(remainders, 6))) == len(counts))  # it draws lots between ties
    classes = np.repeat(np.arange(len(counts)), counts)
    kept, _ = train_test_split(classes, test_size=share, stratify=classes, random_state=0)
    assert splits.allocate(np.array(counts), total - held_out).tolist() == (
        np.bincount(kept, minlength=len(counts)).tolist()
    )


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.floats(0, 1))
def test_allocation_adds_up_and_never_exceeds_a_class(counts: list[int], share: float) -> None:
    total = int(share * sum(counts))
    allotted = splits.allocate(np.array(counts), total)
    assert allotted.sum() == total
    assert (allotted <= counts).all()


def test_every_row_is_equally_likely_to_be_held_out() -> None:
    classes = np.zeros(20, dtype=int)
    times = np.zeros(20)
    for seed in range(2000):
        split = splits.stratified(classes, Holdout(test=0.25, val=0.2), stream(seed, "split"))
        times += split == TEST
    # 5 of 20 rows each time: 500 expected, standard deviation sqrt(2000 * 1/4 * 3/4) = 19.4
    assert (abs(times - 500) < 5 * 19.4).all()


def test_time_cuts_at_the_quantiles_and_keeps_equal_times_together() -> None:
    timestamp = np.array([*range(1, 11)])
    # floor(0.7875 * 10) = 7 rows before the first cut, floor(0.9 * 10) = 9 before the second
    assert sizes(splits.by_time(timestamp)) == [7, 2, 1]
    tied = np.array([1, 2, 3, 4, 5, 6, 9, 9, 9, 9])
    # the row at rank 7 has time 9, and so has that at rank 9: all four are test
    assert splits.by_time(tied).tolist() == [TRAIN] * 6 + [TEST] * 4


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60))
def test_time_split_never_straddles_a_tie_nor_runs_backwards(times: list[int]) -> None:
    timestamp = np.array(times)
    split = splits.by_time(timestamp)
    assert (np.diff(split[np.argsort(timestamp, kind="stable")]) >= 0).all()
    assert all(len(set(split[timestamp == t])) == 1 for t in set(times))


def test_leave_last_takes_the_last_two_of_users_with_three_or_more() -> None:
    user = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])
    time = np.array([30, 10, 20, 1, 2, 8, 8, 8, 8])  # user 2: equal times, so as in the input
    event = splits.events(user, time)
    assert event.tolist() == [2, 0, 1, 0, 1, 0, 1, 2, 3]
    split = splits.leave_last(user, event)
    assert split.tolist() == [TEST, TRAIN, VAL, TRAIN, TRAIN, TRAIN, TRAIN, VAL, TEST]


@pytest.mark.parametrize("seed", range(5))
def test_rows_without_a_label_have_their_share_of_each_split(seed: int, tmp_path: Path) -> None:
    """10 clicks, 10 zeros, 20 empty cells: test 1, 1, 2 of them and val 1, 1, 3.

    Test: ceil(40 / 10) rows, as 10, 10, 20 times 36 / 40 are left. Val: ceil(36 / 8) rows: of 9, 9,
    18 times 31 / 36 train keeps 7.75, 7.75, 15.5, so 8, 8, 15.
    """
    n = np.arange(40)
    clicked = np.where(n < 10, 1.0, np.where(n < 20, 0.0, np.nan))
    source = save(frame().assign(clicked=clicked), tmp_path / "x.csv")
    ids = {**IDS, "tasks": ["watch:binary=clicked"]}
    table.prepare(tmp_path / "out", input=source, seed=seed, **ids)
    labels = {split: columns(tmp_path / "out", split)["watch"] for split in SPLITS}
    assert {
        split: [found.count(label) for label in (1.0, 0.0, None)] for split, found in labels.items()
    } == {"train": [8, 8, 15], "val": [1, 1, 3], "test": [1, 1, 2]}
