"""Expert Choice against golden numbers, its rounding, and what depends on the batch.

The gate is the identity, so that the logits are the input. Axes: S rows, E experts.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recsys_moe.config.settings import parse_config
from recsys_moe.routers import RouterShape
from recsys_moe.routers.expert_choice import ExpertChoiceRouter, pick_examples
from recsys_moe.routers.selection import picks

LOGITS = torch.tensor([[2.0, 1, 0], [2, 0, 0], [1, 1, 3], [0, 0, 0]], dtype=torch.float64)
# softmax of each row; every column keeps 4 * 1.5 / 3 = 2 rows
WEIGHTS = [
    [0.665241, 0.244728, 0],
    [0.786986, 0, 0],
    [0, 0, 0.786986],
    [0, 1 / 3, 1 / 3],
]


def identity_router(num_experts: int = 3, **settings: object) -> ExpertChoiceRouter:
    config = ExpertChoiceRouter.Config(**settings)
    router = ExpertChoiceRouter(config, RouterShape(num_experts, num_experts))
    torch.nn.init.eye_(router.gate.weight)
    return router.double().eval()


def test_each_expert_keeps_its_most_probable_rows() -> None:
    routing = identity_router(k=1.5)(LOGITS)
    for found, expected in zip(routing.weights_BE.tolist(), WEIGHTS, strict=True):
        assert found == pytest.approx(expected, abs=1e-6)
    assert routing.selected_BE.sum(0).tolist() == [2, 2, 2]
    assert routing.selected_BE.sum(1).tolist() == [2, 1, 1, 2]
    sums = [0.909969, 0.786986, 0.786986, 0.666667]
    assert routing.weights_BE.sum(1).tolist() == pytest.approx(sums, abs=1e-6)


def test_a_row_that_nobody_picks_has_weight_0_and_no_gradient() -> None:
    """k = 3/4 of 4 rows and 3 experts: each picks 1 row; the last row is nobody's best."""
    logits = torch.cat([3 * torch.eye(3), torch.zeros(1, 3)]).double().requires_grad_()
    weights = identity_router(k=0.75)(logits).weights_BE
    weights.square().sum().backward()
    assert weights[3].tolist() == [0, 0, 0] and logits.grad[3].tolist() == [0, 0, 0]
    assert (logits.grad[:3] != 0).any(1).all()


@pytest.mark.parametrize(
    ("rows", "experts", "k", "expected"),
    [
        (512, 16, 2, 64),  # 512 * 2 / 16 exactly
        (2048, 9, 4, 911),  # 910.2
        (1, 16, 2, 1),  # at least 1
        (3, 16, 2, 1),
        (5, 4, 4, 5),  # at most the rows
        (45, 9, 2.2, 11),  # 11.000000000000002 in floating point
    ],
)
def test_picks_per_expert(rows: int, experts: int, k: float, expected: int) -> None:
    assert picks(rows, experts, k) == expected


@pytest.mark.parametrize(("k", "kept"), [(2.0, 2), (1.5, 2), (0.5, 1)])
def test_penalties_see_k_rounded_up(k: float, kept: int) -> None:
    assert identity_router(k=k).kept == kept


def test_ties_go_to_the_earlier_row() -> None:
    picked = pick_examples(torch.zeros(6, 3), 1.0)
    assert picked.tolist() == [[True] * 3] * 2 + [[False] * 3] * 4


def random_rows(rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 3, generator=generator, dtype=torch.float64)


@given(st.integers(1, 40), st.integers(1, 4))
def test_evaluation_does_not_depend_on_batches_of_whole_groups(rows: int, groups: int) -> None:
    router, x = identity_router(k=1, eval_group=8), random_rows(rows)
    parts = [router(part).weights_BE for part in x.split(8 * groups)]
    assert torch.equal(torch.cat(parts), router(x).weights_BE)


def test_a_last_partial_group_competes_alone() -> None:
    router, x = identity_router(k=1, eval_group=8), random_rows(11)
    selected = router(x).selected_BE
    assert selected[:8].sum(0).tolist() == [math.ceil(8 / 3)] * 3
    assert selected[8:].sum(0).tolist() == [1] * 3  # 3 rows * 1 / 3


def test_training_competes_over_the_whole_batch() -> None:
    router, x = identity_router(k=1, eval_group=8), random_rows(30)
    assert router.train()(x).selected_BE.sum(0).tolist() == [10, 10, 10]
    assert router.eval()(x).selected_BE.sum(0).tolist() == [3 + 3 + 3 + 2] * 3


@pytest.mark.parametrize("k", [0.0, -1.0, 3.5, math.nan, math.inf])
def test_an_impossible_k_is_refused_with_rule_value_and_remedy(k: float) -> None:
    with pytest.raises(ValueError, match=f"k .*=3, got {k};"):
        identity_router(k=k)


def test_evaluation_batches_are_rounded_up_to_whole_groups() -> None:
    raw = {"model": {"router": {"name": "expert_choice"}}, "data": {"eval_batch_size": 700}}
    assert parse_config(raw).eval_rows == 1024  # 2 x 512
    raw["model"]["router"]["eval_group"] = 256
    assert parse_config(raw).eval_rows == 768  # 3 x 256
