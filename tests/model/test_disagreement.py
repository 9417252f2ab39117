"""The penalty on tasks that choose different experts: values, bounds, gradients, and what it does.

Axes: T tasks, B batch, E experts.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError
from recsys_moe.model.experts import Experts
from recsys_moe.model.moe import MoE
from recsys_moe.model.penalties import disagreement, disagreement_of
from recsys_moe.routers import ROUTERS, Routing, router

READS = sorted(n for n in ROUTERS if "disagreement" not in ROUTERS[n].Config().idle_penalties)


def test_the_value_is_what_the_formula_says() -> None:
    """Row 0: tasks (1, 0) and (0, 1), mean (.5, .5): log 2 - 0. Row 1: alike, so 0."""
    probs_TBE = torch.tensor([[[1.0, 0], [0.3, 0.7]], [[0, 1], [0.3, 0.7]]])
    assert disagreement(probs_TBE).item() == pytest.approx(math.log(2) / 2, abs=1e-6)


@given(
    seed=st.integers(0, 2**31),
    sizes=st.tuples(*[st.integers(1, 5)] * 3),
    scale=st.sampled_from([0.1, 1.0, 100.0]),
)
def test_it_is_between_0_and_log_T_and_does_not_depend_on_the_order_of_tasks(
    seed: int, sizes: tuple[int, int, int], scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(*sizes, generator=generator, dtype=torch.float64)
    found = disagreement(logits.softmax(-1))
    assert -1e-9 <= found <= math.log(sizes[0]) + 1e-9
    torch.testing.assert_close(found, disagreement(logits.flip(0).softmax(-1)))


def test_the_gradient_is_that_of_the_naive_sum_and_finite_at_certain_choices() -> None:
    logits = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    (fast,) = torch.autograd.grad(disagreement(logits.softmax(-1)), logits)
    (slow,) = torch.autograd.grad(naive(logits.softmax(-1)), logits)
    torch.testing.assert_close(fast, slow)
    certain = torch.tensor([[[500.0, 0]], [[0, 500.0]]], requires_grad=True)
    disagreement(certain.softmax(-1)).backward()
    assert certain.grad is not None and certain.grad.isfinite().all()


def naive(probs_TBE: Tensor) -> Tensor:
    """The mean over tasks of the divergence of each from their mean."""
    total = probs_TBE.new_zeros(())
    tasks, rows, _ = probs_TBE.shape
    for b in range(rows):
        mean_E = sum(probs_TBE[t, b] for t in range(tasks)) / tasks
        for t in range(tasks):
            total = total + (probs_TBE[t, b] * (probs_TBE[t, b] / mean_E).log()).sum()
    return total / (tasks * rows)


def layer_of(name: str, tasks: int) -> MoE:
    torch.manual_seed(0)
    made = [router(name, input_dim=6, num_experts=8, num_users=9) for _ in range(tasks)]
    experts = Experts(8, 6, 5)
    return MoE(experts, made, seed=1).train()  # type: ignore[arg-type]


@pytest.mark.parametrize("name", READS)
def test_the_layer_adds_it_once_with_its_weight(name: str) -> None:
    layer, x_BD = layer_of(name, 2), torch.randn(16, 6)
    _, routings = layer(x_BD, torch.arange(16) % 9)
    alone = layer.auxiliary_loss(routings)
    together = layer.auxiliary_loss(routings, disagreement=0.5)
    torch.testing.assert_close(together - alone, 0.5 * disagreement_of(routings, 0.5))
    (gradient,) = torch.autograd.grad(
        together, [next(p for p in layer.routers.parameters() if p.requires_grad)]
    )
    assert gradient.isfinite().all() and gradient.abs().sum() > 0


def test_one_task_has_nobody_to_disagree_with() -> None:
    layer = layer_of("moesart", 1)
    _, routings = layer(torch.randn(4, 6))
    assert layer.auxiliary_loss(routings, disagreement=1.0) == 0


def test_tasks_that_agree_visit_fewer_experts() -> None:
    """Two gates begin apart; steps on the penalty alone leave them with the experts of one."""
    layer, x_BD = layer_of("moesart", 2), torch.randn(64, 6)
    gates = list(layer.routers.parameters())
    nn.init.normal_(gates[0], std=2.0), nn.init.normal_(gates[1], std=2.0)
    optimizer = torch.optim.Adam(gates, lr=0.05)

    def visited() -> float:
        layer.eval()
        _, routings = layer(x_BD)
        layer.train()
        return torch.stack([r.selected_BE for r in routings]).any(0).sum(1).float().mean().item()

    before = visited()
    for _ in range(300):
        optimizer.zero_grad()
        _, routings = layer(x_BD)
        layer.auxiliary_loss(routings, disagreement=1.0).backward()
        optimizer.step()
    assert before > 3 and visited() < before - 0.75


def test_a_router_from_outside_without_probabilities_is_refused() -> None:
    bare = Routing(torch.ones(2, 3), torch.ones(2, 3) > 0)
    with pytest.raises(ConfigError, match=r"penalties.disagreement must be 0 .*without probs.*0.3"):
        disagreement_of([bare, bare], 0.3)


@pytest.mark.parametrize("name", sorted(set(ROUTERS) - set(READS)))
def test_a_router_without_probabilities_is_refused_by_the_configuration(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"penalties.disagreement must be 0 with .*{name}"):
        parse_config({"model": {"router": {"name": name}}, "penalties": {"disagreement": 0.1}})
