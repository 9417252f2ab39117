"""The curve of S5: the mean over all draws of s trials, exactly."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from research.paper.curve import curve, sizes

LOSSES = st.lists(st.integers(0, 1000), min_size=1, max_size=7, unique=True)


def test_the_numbers_of_trials_are_those_of_the_paper() -> None:
    assert sizes(21) == [1, 2, 5, 10, 15, 20]
    assert sizes(1) == [1] and sizes(4) == [1, 2] and sizes(0) == []
    assert sizes(500)[-1] == 500


@pytest.mark.parametrize("test", [[10.0, 20.0, 30.0], [30.0, 20.0, 10.0]])
def test_of_trials_with_equal_losses_the_first_is_the_best(test: list[float]) -> None:
    """As the study chooses: of three equal ones the best of 2 is the first in 2 of 3 pairs."""
    _, two = curve([1.0, 1.0, 1.0], test)
    assert two.test == pytest.approx((2 * test[0] + test[1]) / 3)


@given(LOSSES, st.randoms(use_true_random=False))
def test_each_point_is_the_mean_over_all_draws(losses: list[int], shuffler: random.Random) -> None:
    test = [shuffler.random() for _ in losses]
    for point in curve(losses, test):
        draws = list(itertools.combinations(range(len(losses)), point.trials))
        best = [min(draw, key=losses.__getitem__) for draw in draws]
        found = [losses[i] for i in best], [test[i] for i in best]
        assert point.validation == pytest.approx(statistics.fmean(found[0]))
        assert point.validation_std == pytest.approx(statistics.pstdev(found[0]), abs=1e-9)
        assert point.test == pytest.approx(statistics.fmean(found[1]))
        assert point.test_std == pytest.approx(statistics.pstdev(found[1]), abs=1e-9)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60))
def test_more_trials_never_make_the_selected_loss_worse(losses: list[float]) -> None:
    points = curve(losses)
    for before, after in itertools.pairwise(points):
        assert after.validation <= before.validation + 1e-9
    assert points[0].validation == pytest.approx(statistics.fmean(losses))
    assert min(losses) - 1e-9 <= points[-1].validation
    assert all(point.test is None for point in points)
