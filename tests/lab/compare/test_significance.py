"""Means, t-tests and the correction, against arithmetic that a reader can redo."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.lab.compare.significance import holm, paired_p, spread, unpaired_p

P = st.one_of(st.none(), st.floats(0, 1))
VALUE = st.floats(0.1, 1).map(lambda x: round(x, 3))
VALUES = st.lists(VALUE, min_size=2, max_size=6)


def t_below(t: float, degrees: int) -> float:
    """P(T < t), in the closed forms for 2 and 4 degrees of freedom."""
    if degrees == 2:
        return 1 / 2 + t / (2 * math.sqrt(2 + t * t))
    assert degrees == 4
    scale = 1 + t * t / 4
    return 1 / 2 + 3 / 8 * t / math.sqrt(scale) * (1 - t * t / scale / 12)


def test_the_standard_error_divides_by_n_minus_1_and_by_the_root_of_n() -> None:
    found = spread([1.0, 2.0, 3.0, 4.0, 5.0])
    # squared deviations 4 + 1 + 0 + 1 + 4 = 10; variance 10 / 4; error sqrt(2.5 / 5)
    assert (found.mean, found.n) == (3.0, 5)
    assert found.standard_error == pytest.approx(math.sqrt(0.5))
    assert spread([7.0]).standard_error is None


def test_the_unpaired_test_of_equal_spreads() -> None:
    # means 2 and 3, variances 1 and 1: t = -1 / sqrt(1/3 + 1/3), 4 degrees of freedom
    expected = t_below(-1 / math.sqrt(2 / 3), 4)
    assert expected == pytest.approx(0.1439, abs=1e-4)
    assert unpaired_p([1.0, 2.0, 3.0], [2.0, 3.0, 4.0], higher=False) == pytest.approx(expected)
    # of values for which higher is better the second is ahead
    assert unpaired_p([1.0, 2.0, 3.0], [2.0, 3.0, 4.0], higher=True) == pytest.approx(1 - expected)


def test_the_unpaired_test_does_not_assume_equal_spreads() -> None:
    # variances 0 and 1: t = -2 / sqrt(0 + 1/3); (1/3)^2 / ((1/3)^2 / 2) = 2 degrees of freedom
    expected = t_below(-2 / math.sqrt(1 / 3), 2)
    assert unpaired_p([0.0] * 3, [1.0, 2.0, 3.0], higher=False) == pytest.approx(expected)
    assert expected > t_below(-2 / math.sqrt(1 / 3), 4)  # with equal spreads assumed


def test_the_paired_test_looks_at_differences_per_seed() -> None:
    # differences 1, 2, 3: mean 2, variance 1: t = 2 / sqrt(1/3), 2 degrees of freedom
    expected = 1 - t_below(2 / math.sqrt(1 / 3), 2)
    assert paired_p([11.0, 52.0, 93.0], [10.0, 50.0, 90.0], higher=True) == pytest.approx(expected)


def test_what_has_no_spread_has_no_test() -> None:
    assert unpaired_p([1.0], [2.0, 3.0], higher=False) is None
    assert unpaired_p([1.0, 1.0], [2.0, 2.0], higher=False) is None
    assert paired_p([1.0], [2.0], higher=False) is None
    assert paired_p([1.0, 2.0], [2.0, 3.0], higher=False) is None


def test_holm_multiplies_the_smallest_by_all_and_the_next_by_one_less() -> None:
    # sorted 0.01 x 3 = 0.03, 0.03 x 2 = 0.06, 0.04 x 1 raised to the 0.06 before it
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.02, None, 0.5]) == [0.04, None, 0.5]  # two tests, not three
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(P, max_size=8))
def test_holm_never_lowers_a_p_value_nor_changes_their_order(found: list[float | None]) -> None:
    adjusted = holm(found)
    pairs = sorted((p, a) for p, a in zip(found, adjusted, strict=True) if p and a is not None)
    assert all(p <= a <= 1 for p, a in pairs)
    assert [a for _, a in pairs] == sorted(a for _, a in pairs)
    assert [a is None for a in adjusted] == [p is None for p in found]
