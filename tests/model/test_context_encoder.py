"""The context encoder: a sum of rows, as by loops; what is missing, and what is unknown."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recsys_moe.model.encoders.context import Context
from recsys_moe.model.request import Request

SIZES = (3, None, 2)
"""Two categorical features with 3 and 2 known categories around a number: 4 + 1 + 3 rows."""
CATEGORY = st.sampled_from([0.0, 1.0, 2.0, float("nan")])
ROWS = st.tuples(CATEGORY, st.floats(-3, 3, width=32) | st.just(float("nan")), CATEGORY)


def encoder() -> Context:
    made = Context(SIZES, 5)
    torch.nn.init.normal_(made.table_RD, generator=torch.Generator().manual_seed(0))
    return made


def naive(made: Context, context: list[tuple[float, float, float]]) -> Tensor:
    rows = []
    for first, number, second in context:
        total_D = torch.zeros(5)
        if first == first:
            total_D = total_D + made.table_RD[int(first)]
        if number == number:
            total_D = total_D + number * made.table_RD[4]
        if second == second:
            total_D = total_D + made.table_RD[5 + int(second)]
        rows.append(total_D)
    return torch.stack(rows)


def asked(context: list[tuple[float, ...]]) -> Request:
    index_B = torch.zeros(len(context), dtype=torch.long)
    return Request(index_B, index_B, torch.tensor(context))


@given(st.lists(ROWS, min_size=1, max_size=8))
def test_values_and_gradients_are_those_of_loops(context: list[tuple[float, float, float]]) -> None:
    made, other = encoder(), encoder()
    found, expected = made(asked(context)), naive(other, context)
    torch.testing.assert_close(found, expected)
    weight_BD = torch.linspace(-1, 1, found.numel()).view_as(found)
    (found * weight_BD).sum().backward()
    (expected * weight_BD).sum().backward() if expected.requires_grad else None
    wanted = torch.zeros_like(made.table_RD) if other.table_RD.grad is None else other.table_RD.grad
    torch.testing.assert_close(made.table_RD.grad, wanted)


def test_an_unknown_category_has_a_row_of_its_own_and_a_missing_one_none() -> None:
    made, nan = encoder(), float("nan")
    found = made(asked([(3.0, nan, nan), (nan, nan, 2.0), (nan, nan, nan)]))
    torch.testing.assert_close(found, torch.stack([*made.table_RD[[3, 7]], torch.zeros(5)]))


def test_without_any_context_nothing_is_added() -> None:
    index_B = torch.zeros(3, dtype=torch.long)
    assert torch.equal(encoder()(Request(index_B, index_B)), torch.zeros(3, 5))
    assert not Context(SIZES, 5)(asked([(0.0, 1.0, 1.0)])).any()  # a new table is 0
