"""BASE and S-BASE: balanced assignment against scipy and golden numbers.

Axes: B batch, E experts.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys_moe.routers import Router
from recsys_moe.routers.base import RouterShape
from recsys_moe.routers.base_layer import (
    BaseLayerRouter,
    balanced_assignment,
)
from recsys_moe.routers.sinkhorn_base import SinkhornBaseRouter

# Everyone prefers expert 0, by 2, 1.5, 1 and .2: it goes to the two who gain most.
SCORES = torch.tensor([[2.0, 0], [1.5, 0], [1, 0], [0.2, 0]], dtype=torch.float64)


def router(cls: type[Router], num_experts: int = 2, inputs: int = 1) -> Router:
    torch.manual_seed(0)
    return cls(cls.Config(), RouterShape(inputs, num_experts)).double()


def golden(cls: type[Router], training: bool) -> tuple[Router, Tensor]:
    """A router whose scores are SCORES: one input, which expert 0 scores by itself."""
    made = router(cls).train(training)
    with torch.no_grad():
        made.gate.weight.copy_(torch.tensor([[1.0], [0.0]]))
    return made, SCORES[:, :1].clone()


def random_scores(rows: int, experts: int, seed: int) -> Tensor:
    return torch.randn(rows, experts, generator=torch.Generator().manual_seed(seed))


def test_golden_assignment_is_balanced_where_the_greedy_one_is_not() -> None:
    assert SCORES.argmax(1).tolist() == [0, 0, 0, 0]
    assert balanced_assignment(SCORES).tolist() == [0, 0, 1, 1]


def test_golden_base_weights_are_sigmoids_of_the_assigned_score() -> None:
    made, x_BD = golden(BaseLayerRouter, training=True)
    routing = made(x_BD)
    assert routing.selected_BE.int().argmax(1).tolist() == [0, 0, 1, 1]
    gates = routing.weights_BE.sum(1)
    # 1 / (1 + e^-2), 1 / (1 + e^-1.5), and the score 0 of expert 1 twice
    assert gates.tolist() == pytest.approx([0.880797, 0.817574, 0.5, 0.5], abs=1e-6)


def test_centroids_learn_through_the_sigmoid_alone() -> None:
    made, x_BD = golden(BaseLayerRouter, training=True)
    made(x_BD).weights_BE.sum().backward()
    # sum over the assigned rows of s (1 - s) x: .104994 * 2 + .149146 * 1.5; .25 * (1 + .2)
    expected = [[0.104994 * 2 + 0.149146 * 1.5], [0.25 * 1.2]]
    assert made.gate.weight.grad.tolist() == [pytest.approx(row, abs=1e-5) for row in expected]


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 10**6))
def test_loads_differ_by_at_most_one_for_any_batch(rows: int, experts: int, seed: int) -> None:
    """Also fewer rows than experts, and a remainder."""
    expert_B = balanced_assignment(random_scores(rows, experts, seed))
    loads_E = torch.bincount(expert_B, minlength=experts)
    assert len(expert_B) == rows and (expert_B >= 0).all()
    assert loads_E.min().item() == rows // experts
    assert loads_E.max().item() == -(-rows // experts)


def test_the_remainder_takes_the_best_expert_that_has_room() -> None:
    # Three rows, two experts: one row each by auction, the third joins its favourite.
    scores_BE = torch.tensor([[3.0, 0], [0, 3.0], [2.0, 0]])
    assert balanced_assignment(scores_BE).tolist() == [0, 1, 0]


def test_with_fewer_rows_than_experts_everyone_gets_one_of_the_best() -> None:
    scores_BE = torch.tensor([[5.0, 4, 0, 0], [9.0, 8, 0, 0]])
    assert balanced_assignment(scores_BE).tolist() == [1, 0]


def test_a_price_war_that_outlasts_the_rounds_ends_greedily_and_balanced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("recsys_moe.routers.base_layer.ROUNDS", 1)
    expert_B = balanced_assignment(random_scores(64, 8, 0))
    assert torch.bincount(expert_B, minlength=8).tolist() == [8] * 8


@pytest.mark.parametrize("seed", range(5))
def test_a_popular_expert_costs_nothing(seed: int) -> None:
    """Adding a constant to a column changes no balanced assignment: its price starts higher.

    From prices of 0 the range of the scores, and so a step of the bids, would be larger.
    """
    scores_BE = random_scores(64, 4, seed).double()
    popular_BE = scores_BE + torch.tensor([128.0, 0, 0, 0], dtype=torch.float64)
    assert torch.equal(balanced_assignment(scores_BE), balanced_assignment(popular_BE))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nonfinite_scores_count_as_the_smallest_finite_one(bad: float) -> None:
    scores_BE = torch.tensor([[2.0, 0], [1.5, 0], [bad, 0], [0.2, 0]])
    # Read as [0, 0], row 2 gains nothing from expert 0 and row 3 gains .2.
    assert balanced_assignment(scores_BE).tolist() == [0, 0, 1, 1]
    everything_bad = torch.full((4, 2), bad)
    assert sorted(balanced_assignment(everything_bad).tolist()) == [0, 0, 1, 1]


@pytest.mark.parametrize("scale", [0.0, 1e4, 1e30])
def test_equal_and_huge_scores_are_balanced_too(scale: float) -> None:
    expert_B = balanced_assignment(scale * random_scores(24, 4, 2))
    assert torch.bincount(expert_B).tolist() == [6] * 4


def test_centroids_start_orthogonal_with_norm_a_tenth() -> None:
    weight_ED = router(BaseLayerRouter, 3, 8).gate.weight
    expected = 0.01 * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close((weight_ED @ weight_ED.t()).detach(), expected)
    assert [name for name, _ in router(BaseLayerRouter).named_parameters()] == ["gate.weight"]


def test_sinkhorn_base_loads_are_nearly_even_in_training() -> None:
    made = router(SinkhornBaseRouter, 4, 8).train()
    x_BD = torch.randn(512, 8, dtype=torch.float64) + 1.0
    loads_E = made(x_BD).selected_BE.sum(0)
    greedy_E = made.eval()(x_BD).selected_BE.sum(0)
    assert loads_E.max().item() < 160 < greedy_E.max().item()  # 128 were even
