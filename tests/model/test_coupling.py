"""The ERC loss against golden numbers, and which routers it can act on.

Axes: E experts, D input width, H expert width.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from recsys_moe.config.settings import ConfigError, parse_config
from recsys_moe.model.coupling import coupling, perturbed
from recsys_moe.model.experts import Experts
from recsys_moe.model.moe import MoE
from recsys_moe.routers import ROUTERS, RouterShape, router

ROWS = torch.tensor([[1.0, 0], [0, 2]], dtype=torch.float64)
KERNELS = torch.tensor([[[1.0], [3]], [[2], [1]]], dtype=torch.float64)
WITH_ROWS = sorted(n for n in ROUTERS if "coupling" not in ROUTERS[n].Config().idle_penalties)


def layer_of(name: str, num_experts: int = 4, dispatch: str = "auto", **settings: object) -> MoE:
    torch.manual_seed(0)
    made = router(name, input_dim=6, num_experts=num_experts, num_users=9, **settings)
    return MoE(Experts(num_experts, 6, 5), [made], dispatch, seed=1)  # type: ignore[arg-type]


def naive(rows_ED: Tensor, kernel_EDH: Tensor) -> Tensor:
    n, total = len(rows_ED), rows_ED.new_zeros(())
    norm = [
        [(rows_ED[i] @ kernel_EDH[j]).square().sum().sqrt() for j in range(n)] for i in range(n)
    ]
    for i in range(n):
        for j in range(n):
            if i != j:
                total = total + (norm[i][j] - norm[i][i]).relu() + (norm[j][i] - norm[i][i]).relu()
    return total / n**2


def test_the_loss_is_what_the_formula_says() -> None:
    """M = [[1, 2], [6, 2]]: i = 0: (2 - 1) + (6 - 1), i = 1: (6 - 2) + 0; 10 / 4."""
    assert coupling(ROWS, KERNELS).item() == 2.5


def test_it_is_0_where_every_expert_answers_most_to_its_own_row() -> None:
    """M = [[3, 1], [2, 8]]."""
    kernels = torch.tensor([[[3.0], [1]], [[1], [4]]], dtype=torch.float64)
    assert coupling(ROWS, kernels).item() == 0


def test_values_and_gradients_are_those_of_the_naive_sum() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(5, 4, generator=generator, dtype=torch.float64).requires_grad_()
    kernels = torch.randn(5, 4, 3, generator=generator, dtype=torch.float64).requires_grad_()
    fast, slow = coupling(rows, kernels), naive(rows, kernels)
    torch.testing.assert_close(fast, slow)
    for found, expected in zip(
        torch.autograd.grad(fast, (rows, kernels)),
        torch.autograd.grad(slow, (rows, kernels)),
        strict=True,
    ):
        torch.testing.assert_close(found, expected)
    assert torch.autograd.gradcheck(coupling, (rows, kernels))


def test_rows_are_multiplied_by_at_most_half_the_way_to_the_nearest_other_row() -> None:
    """Distance sqrt(5): eps = sqrt(5) / 2, so 1, and sqrt(5) / 4 = .559017."""
    uniform = torch.tensor([[0.0, 0.5], [0.5, 0.75]], dtype=torch.float64)
    # factors 1 - 1 and 1; 1 and 1 + .559017 / 2
    expected = torch.tensor([[0.0, 0], [0, 2.559017]], dtype=torch.float64)
    torch.testing.assert_close(perturbed(ROWS, uniform), expected, atol=1e-6, rtol=0)
    assert torch.equal(perturbed(ROWS[:1], uniform[:1]), ROWS[:1])


def test_rows_of_zeros_have_finite_values_and_gradients() -> None:
    rows = torch.zeros(3, 2).requires_grad_()
    value = coupling(perturbed(rows, torch.rand(3, 2)), torch.randn(3, 2, 4))
    value.backward()
    assert value.item() == 0 and torch.isfinite(rows.grad).all()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WITH_ROWS)
def test_every_router_with_gate_rows_and_the_experts_learn_from_it(name: str) -> None:
    layer = layer_of(name)
    _, routings = layer(torch.randn(8, 6), torch.arange(8))
    loss = layer.auxiliary_loss(routings, coupling=0.5)
    without = layer.auxiliary_loss(routings)
    assert loss > without
    loss.backward()
    rows_ED = layer.routers[0].expert_rows
    assert rows_ED.shape == (4, 6) and (rows_ED.grad != 0).any()  # type: ignore[union-attr]
    assert (layer.experts.kernel_EDH.grad != 0).any()


def test_training_draws_from_the_seed_and_evaluation_does_not_draw() -> None:
    layer = layer_of("topk")
    _, routings = layer(torch.randn(8, 6))
    drawn = []
    for seed in (3, 3, 4):
        layer.reseed(seed)
        drawn.append(layer.auxiliary_loss(routings, coupling=1.0).item())
    assert drawn[0] == drawn[1] != drawn[2]
    quiet = layer.eval().auxiliary_loss(routings, coupling=2.0)
    rows_ED = layer.routers[0].expert_rows
    torch.testing.assert_close(quiet, 2 * coupling(rows_ED, layer.experts.kernel_EDH))  # type: ignore[arg-type]


def test_minimising_it_makes_experts_answer_to_their_own_rows() -> None:
    layer = layer_of("topk", num_experts=8)
    _, routings = layer(torch.randn(8, 6))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    rows_ED, kernels = layer.routers[0].expert_rows, layer.experts.kernel_EDH
    before = coupling(rows_ED, kernels).item()  # type: ignore[arg-type]
    for _ in range(200):
        optimizer.zero_grad()
        layer.auxiliary_loss(routings, coupling=1.0).backward()
        optimizer.step()
    assert coupling(rows_ED, kernels).item() < 0.1 * before  # type: ignore[arg-type]


@pytest.mark.parametrize("name", sorted(set(ROUTERS) - set(WITH_ROWS)))
def test_routers_without_gate_rows_refuse_it(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^penalties.coupling .*router {name}, .*got 0.5;"):
        parse_config({"model": {"router": {"name": name}}, "penalties": {"coupling": 0.5}})
    made = ROUTERS[name](ROUTERS[name].Config(), RouterShape(6, 4, 9))
    assert made.expert_rows is None


def test_a_learned_permutation_and_expert_modules_refuse_it() -> None:
    model = {"router": {"name": "topk", "permutation": True}}
    with pytest.raises(ConfigError, match=r"penalties.coupling .*got 0.5;"):
        parse_config({"model": model, "penalties": {"coupling": 0.5}})
    made = router("topk", input_dim=6, num_experts=2)
    layer = MoE([nn.Linear(6, 3), nn.Linear(6, 3)], [made])
    _, routings = layer(torch.randn(8, 6))
    with pytest.raises(ConfigError, match="penalties.coupling must be 0 with expert modules"):
        layer.auxiliary_loss(routings, coupling=1.0)
