"""The k largest entries of a row, found one by one or by sorting.

Axes: B batch, E experts.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.routers import selection
from recsys_moe.routers.selection import largest_k, smallest_k

VALUES = st.sampled_from([-torch.inf, -1.0, 0.0, 0.5, 0.5, 2.0, torch.inf, torch.nan])
ROWS = st.integers(2, 7).flatmap(
    lambda width: st.lists(st.lists(VALUES, min_size=width, max_size=width), min_size=1, max_size=5)
)


@given(ROWS, st.integers(1, 7))
def test_one_by_one_and_sorted_select_the_same_entries(rows: list[list[float]], k: int) -> None:
    """Ties, infinities and NaN included; few distinct values, so that rows are full of ties."""
    values = torch.tensor(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "SMALL", 0)
        patch.setattr(selection, "FEW", 7)
        found = largest_k(values, min(k, values.shape[1]))
        patch.setattr(selection, "FEW", 0)
        expected = largest_k(values, min(k, values.shape[1]))
    assert torch.equal(found, expected)
    assert (found.sum(-1) == min(k, values.shape[1])).all()


def test_among_equals_the_lower_index_wins() -> None:
    assert largest_k(torch.zeros(1, 4), 2).tolist() == [[True, True, False, False]]


@given(ROWS, st.integers(1, 7))
def test_the_smallest_are_those_of_a_stable_sort_one_by_one_and_sorted(
    rows: list[list[float]], k: int
) -> None:
    """As keys of `sample_gumbel`: at most 0, many of them equal, and rows of NaN."""
    values = -torch.tensor(rows).abs().clamp(max=9)
    k = min(k, values.shape[1])
    order = values.nan_to_num(nan=-torch.inf).numpy().argsort(-1, kind="stable")[:, :k]
    for few in (0, 7):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(selection, "FEW", few)
            found, index = smallest_k(values, k)
        assert index.tolist() == order.tolist()
        torch.testing.assert_close(found, values.gather(-1, index), rtol=0, atol=0, equal_nan=True)
