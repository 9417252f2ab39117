"""Sparsity-constrained optimal transport: projection, dual ascent, evaluation groups.

Axes: B batch, E experts.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recsys_moe.routers.base import RouterShape
from recsys_moe.routers.sparse_ot import SparseOTRouter, dual_prices, sparse_projection

BASE = torch.tensor([2.0, 1, 0, -1], dtype=torch.float64).softmax(0)


def router(num_experts: int = 4, inputs: int = 3, **settings: object) -> SparseOTRouter:
    torch.manual_seed(0)
    config = SparseOTRouter.Config(**settings)
    return SparseOTRouter(config, RouterShape(inputs, num_experts)).double()


def rows(count: int, inputs: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, inputs, generator=generator, dtype=torch.float64) + 0.5


@pytest.mark.parametrize(
    ("values", "k", "expected"),
    [
        ([0.5, 0.4, 0.3, 0.1], 2, [0.55, 0.45, 0, 0]),  # t = (.9 - 1) / 2 = -.05
        ([0.5, 0.4, 0.3, 0.1], 4, [0.425, 0.325, 0.225, 0.025]),  # t = (1.3 - 1) / 4 = .075
        ([2.0, 0.5, 0.2, 0.0], 2, [1, 0, 0, 0]),  # t = (2 - 1) / 1; .5 is below it
        (BASE.tolist(), 2, [0.703516, 0.296484, 0, 0]),
        ([0.0, 0, 0, 0], 2, [0.5, 0.5, 0, 0]),  # ties: lower index first
        ([7.0], 1, [1]),
    ],
)
def test_golden_projections(values: list[float], k: int, expected: list[float]) -> None:
    plan_BE, support_BE = sparse_projection(torch.tensor([values], dtype=torch.float64), k)
    assert plan_BE[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert support_BE[0].tolist() == [value > 0 for value in expected]


@given(st.integers(1, 5), st.data())
def test_the_projection_is_the_nearest_sparse_point_of_the_simplex(
    size: int, data: st.DataObject
) -> None:
    """Against every support of k entries, each projected by water filling."""
    numbers = st.integers(-20, 20).map(lambda i: i / 8)
    values = torch.tensor(data.draw(st.lists(numbers, min_size=size, max_size=size))).double()
    k = data.draw(st.integers(1, size))
    plan_BE, support_BE = sparse_projection(values[None], k)
    assert plan_BE.sum().item() == pytest.approx(1) and int(support_BE.sum()) <= k
    nearest = min(
        float((values - _on(values, support)).square().sum())
        for support in itertools.combinations(range(size), k)
    )
    assert float((values - plan_BE[0]).square().sum()) == pytest.approx(nearest, abs=1e-9)


def _on(values: Tensor, support: tuple[int, ...]) -> Tensor:
    """Projection on the simplex of the entries in `support`, by bisection for the threshold."""
    chosen = values[list(support)]
    low, high = float(chosen.min()) - 1, float(chosen.max())
    for _ in range(100):
        middle = (low + high) / 2
        too_much = float((chosen - middle).clamp(min=0).sum()) > 1
        low, high = (middle, high) if too_much else (low, middle)
    point = torch.zeros_like(values)
    point[list(support)] = (chosen - low).clamp(min=0)
    return point


def test_the_projection_of_huge_values_in_float32_is_exact() -> None:
    """3e8 - 1 is 3e8 in float32, which would leave no entry above the threshold."""
    plan_BE, support_BE = sparse_projection(torch.tensor([[3e8, 1e8, 0.0], [3e8, 3e8, 0.0]]), 2)
    assert plan_BE.tolist() == [[1, 0, 0], [0.5, 0.5, 0]]
    assert support_BE.tolist() == [[True, False, False], [True, True, False]]


@pytest.mark.parametrize("gamma", [1.0, 0.2])
def test_the_steps_are_those_of_torchs_adam(gamma: float) -> None:
    """The plan of prices v is that of (similarity + v) / gamma."""
    similarity_BE = rows(20, 5).softmax(1)
    price_E = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([price_E], lr=0.01)
    for _ in range(20):
        plan_BE, _ = sparse_projection((similarity_BE + price_E.detach()) / gamma, 2)
        price_E.grad = plan_BE.mean(0) - 1 / 5  # Adam descends
        adam.step()
    torch.testing.assert_close(
        dual_prices(similarity_BE, 2, gamma, steps=20, step_size=0.01), price_E.detach()
    )


def test_the_prices_balance_the_load() -> None:
    similarity_BE = (rows(256, 8) + torch.linspace(0, 1, 8)).softmax(1)

    def uneven(steps: int) -> float:
        price_E = dual_prices(similarity_BE, 2, 1.0, steps=steps, step_size=0.01)
        return float(sparse_projection(similarity_BE + price_E, 2)[0].mean(0).std())

    assert uneven(20) < 0.5 * uneven(0)


def test_every_expert_is_kept_for_k_equal_to_their_number_and_a_strong_regulariser() -> None:
    routing = router(k=4, gamma=100.0)(rows(10))
    torch.testing.assert_close(routing.weights_BE, routing.probs_BE)


def test_a_weak_regulariser_keeps_one_expert() -> None:
    assert (router(k=2, gamma=1e-6)(rows(10)).selected_BE.sum(1) == 1).all()


def test_evaluation_groups_make_the_batch_size_irrelevant() -> None:
    made, x_BD = router(eval_group=8).eval(), rows(40)
    whole = made(x_BD).selected_BE
    for size in (8, 16, 32):
        parts = torch.cat([made(part).selected_BE for part in x_BD.split(size)])
        assert torch.equal(parts, whole)
    assert not torch.equal(torch.cat([made(part).selected_BE for part in x_BD.split(5)]), whole)


def test_training_balances_the_whole_batch() -> None:
    made, x_BD = router(eval_group=4), rows(40)
    grouped = made.eval()(x_BD).selected_BE
    together = router(eval_group=40).eval()(x_BD).selected_BE
    assert torch.equal(made.train()(x_BD).selected_BE, together)
    assert not torch.equal(grouped, together)
