"""ReMoE's ReLU router against golden numbers, and the factor that makes it sparse.

Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from recsys_moe import Experts, MoE
from recsys_moe.routers import RouterShape
from recsys_moe.routers.relu import FACTOR_RANGE, ReLURouter

LOGITS = torch.tensor([[2.0, 1, 0, -1], [-3, 0.5, -1, -2], [-1, 0, -1, -1]], dtype=torch.float64)
"""2, 1 and 0 experts per row: 1 on average."""


def identity_router(**settings: object) -> ReLURouter:
    """Its logits are its input."""
    router = ReLURouter(ReLURouter.Config(**settings), RouterShape(4, 4)).double()
    with torch.no_grad():
        router.gate.weight.copy_(torch.eye(4))
    return router.train()


def alone(values: Tensor) -> Tensor:
    return values


def test_positive_logits_are_the_weights() -> None:
    """Row 0 sums to 3; a logit of 0 selects nobody; row 2 has no expert."""
    routing = identity_router()(LOGITS)
    assert routing.weights_BE.tolist() == [[2, 1, 0, 0], [0, 0.5, 0, 0], [0, 0, 0, 0]]
    assert routing.selected_BE.sum(-1).tolist() == [2, 1, 0]
    assert routing.probs_BE is None and routing.logits_BE is None


@pytest.mark.parametrize("dispatch", ["sparse", "dense", "auto"])
def test_a_row_without_an_expert_has_mixture_0(dispatch: str) -> None:
    torch.manual_seed(0)
    layer = MoE(Experts(4, 4, 32), [identity_router().float()], dispatch)
    mixed_BTH, _ = layer(LOGITS.float())
    assert (mixed_BTH[:2] != 0).any(-1).all() and not mixed_BTH[2].any()


@pytest.mark.parametrize(
    ("settings", "value"),
    [
        ({}, 3.5 / 3),  # sums of the rows 3, .5, 0
        # mean weights [2/3, .5, 0, 0], shares of rows [1/3, 2/3, 0, 0]: 4/2 (2/9 + 1/3)
        ({"balanced": True}, 10 / 9),
        ({"balanced": True, "k": 1}, 20 / 9),
    ],
)
def test_the_l1_term_is_a_mean_over_rows(settings: dict[str, object], value: float) -> None:
    assert identity_router(**settings)(LOGITS).losses["l1"].item() == pytest.approx(value)


@pytest.mark.parametrize(
    ("k", "steps", "factor"),
    [
        (2, 1, 1e-8 / 1.2),  # 1 on average is less than 2: shrink
        (1, 3, 1e-8),  # just right: stay
    ],
)
def test_the_factor_follows_the_number_of_experts(k: int, steps: int, factor: float) -> None:
    router = identity_router(k=k)
    for _ in range(steps):
        router(LOGITS)
        router.on_step_end(alone)
    assert router.loss_weights == {"l1": pytest.approx(factor)}


def test_the_factor_grows_while_rows_have_too_many_experts() -> None:
    """Row 0 has 2 > 1: after three steps 1e-8 * 1.2^3 = 1.728e-8; evaluation counts nothing."""
    router = identity_router(k=1)
    for _ in range(3):
        router(LOGITS[:1])
        router.on_step_end(alone)
    router.eval()(LOGITS[:1])
    router.on_step_end(alone)
    assert router.loss_weights["l1"] == pytest.approx(1.728e-8)


def test_two_passes_are_one_step() -> None:
    """Two rows with 2 experts each, then one with none: 4 in 3 rows are more than 1 each."""
    router = identity_router(k=1)
    router(LOGITS[:1].expand(2, 4))
    router(LOGITS[2:])
    assert router.loss_weights["l1"] == pytest.approx(1e-8)
    router.on_step_end(alone)
    assert router.loss_weights["l1"] == pytest.approx(1.2e-8)


def test_counts_are_summed_over_the_processes() -> None:
    """Own: 2 experts in 1 row; of the others 0 in 2 rows. 2 of 3 rows is less than 1 each."""
    router = identity_router(k=1)
    router(LOGITS[:1])
    router.on_step_end(lambda counted: counted + torch.tensor([0, 2]))
    assert router.loss_weights["l1"] == pytest.approx(1e-8 / 1.2)


def test_the_factor_stays_within_its_range() -> None:
    dense, sparse = identity_router(k=1), identity_router(k=4)
    for _ in range(300):
        for router in (dense, sparse):
            router(LOGITS[:1])
            router.on_step_end(alone)
    assert dense.loss_weights["l1"] == pytest.approx(FACTOR_RANGE[1])
    # 1e-8 / 1.2**300 = 2e-32; without abs=0 approx would take anything up to 2e-12
    assert sparse.loss_weights["l1"] == pytest.approx(FACTOR_RANGE[0], abs=0)


def test_the_layer_weighs_the_term_with_the_factor_before_it_moves() -> None:
    layer = MoE(Experts(4, 4, 3), [identity_router(k=1, l1_start=0.5).float()])
    _, routings = layer(LOGITS[:1].float())
    loss = layer.auxiliary_loss(routings)
    layer.on_step_end()
    assert loss.item() == pytest.approx(0.5 * 3)
    loss.backward()  # of the factor as it was
    assert layer.routers[0].gate.bias.grad.tolist() == pytest.approx([0.5, 0.5, 0, 0])
    assert layer.auxiliary_loss(routings).item() == pytest.approx(0.6 * 3)


def test_training_on_the_term_alone_ends_near_k_experts() -> None:
    """Half of 16 at first; the term alone makes them fewer, and lets go below k = 2."""
    torch.manual_seed(0)
    router = ReLURouter(ReLURouter.Config(l1_start=1e-3), RouterShape(8, 16)).train()
    optimizer = torch.optim.SGD(router.parameters(), lr=0.05)
    x_BD = torch.randn(256, 8)
    counts = []
    for _ in range(400):
        routing = router(x_BD)
        counts.append(routing.selected_BE.double().sum(-1).mean().item())
        optimizer.zero_grad()
        (router.loss_weights["l1"] * routing.losses["l1"]).backward()
        router.on_step_end(alone)
        optimizer.step()
    assert counts[0] == pytest.approx(8, abs=1.5)
    assert 0 < counts[-1] <= 2.1


def test_the_factor_travels_with_the_weights() -> None:
    router = identity_router(k=1)
    router(LOGITS[:1])
    router.on_step_end(alone)
    other = identity_router(k=1)
    other.load_state_dict(copy.deepcopy(router.state_dict()))
    assert torch.equal(other.l1_factor, router.l1_factor) and not other.l1_factor.requires_grad
