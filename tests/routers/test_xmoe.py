"""X-MoE against golden numbers: P = [[1, 0], [0, 2]], A = [[3, 0], [0, 1], [1, 1], [-1, 0]].

Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

import math

import pytest
import torch

from recsys_moe.routers import RouterShape
from recsys_moe.routers.xmoe import XMoERouter, unit_rows

X = torch.tensor([[1.0, 2]], dtype=torch.float64)


def golden_router(k: int = 2) -> XMoERouter:
    router = XMoERouter(XMoERouter.Config(k=k), RouterShape(2, 4)).double().eval()
    with torch.no_grad():
        router.projection.weight.copy_(torch.tensor([[1, 0], [0, 2]]))
        router.embedding_ER.copy_(torch.tensor([[3, 0], [0, 1], [1, 1], [-1, 0]]))
        router.theta.fill_(math.log(0.3))
    return router


def test_logits_are_cosines_per_expert_over_the_temperature() -> None:
    """Px = [1, 4], of length sqrt(17) = 4.123106: cosines 1/4.12, 4/4.12, 5/(4.12 sqrt 2), -1/4.12.

    The norm of the whole matrix A instead would give [.236683, .296173, .370617, .096527].
    """
    routing = golden_router()(X)
    cosines = [0.242536, 0.970143, 0.857493, -0.242536]
    assert (0.3 * routing.logits_BE[0]).tolist() == pytest.approx(cosines, abs=1e-6)
    g = [0.049330, 0.557740, 0.383137, 0.009793]
    assert routing.probs_BE[0].tolist() == pytest.approx(g, abs=1e-6)
    assert routing.weights_BE[0].tolist() == pytest.approx([0, g[1], g[2], 0], abs=1e-6)


def test_logits_of_a_row_differ_by_at_most_2_over_the_temperature() -> None:
    """So with temperature .3 and 16 experts no probability exceeds 1 / (1 + 15 e^(-2 / .3))."""
    torch.manual_seed(0)
    router = XMoERouter(XMoERouter.Config(), RouterShape(8, 16)).eval()
    logits_BE = router(100 * torch.randn(500, 8)).logits_BE
    assert (logits_BE.amax(-1) - logits_BE.amin(-1)).max() <= 2 / 0.3 + 1e-4
    assert logits_BE.softmax(-1).max() <= 1 / (1 + 15 * math.exp(-2 / 0.3))


def test_a_zero_input_has_zero_logits_and_modest_gradients() -> None:
    router = golden_router()
    x_BD = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    routing = router(x_BD)
    routing.weights_BE[:, 0].sum().backward()
    assert routing.logits_BE.tolist() == [[0] * 4] and routing.selected_BE[0, :2].all()
    for gradient in (x_BD.grad, *(p.grad for p in router.parameters())):
        assert gradient.abs().max() <= 10


def test_unit_rows_have_length_1_also_when_short() -> None:
    units = unit_rows(torch.tensor([[3.0, 4], [0, 1e-10], [0, 0]]))
    torch.testing.assert_close(units, torch.tensor([[0.6, 0.8], [0, 1], [0, 0]]))


@pytest.mark.parametrize(
    ("experts", "width", "parameters"),
    [(16, 8, 8 * (256 + 16) + 1), (9, 4, 4 * (256 + 9) + 1), (1, 1, 258), (2, 1, 259)],
)
def test_the_routing_width_is_half_the_experts(experts: int, width: int, parameters: int) -> None:
    router = XMoERouter(XMoERouter.Config(k=1), RouterShape(256, experts))
    assert router.projection.out_features == width
    assert sum(p.numel() for p in router.parameters()) == parameters


def test_the_temperature_starts_as_configured_and_stays_above_its_floor() -> None:
    router = XMoERouter(XMoERouter.Config(temperature=0.7), RouterShape(2, 4))
    assert router.temperature.item() == pytest.approx(0.7)
    torch.nn.init.constant_(router.theta, -50.0)
    assert router.temperature.item() == pytest.approx(0.01)
    assert torch.isfinite(router(X.float()).weights_BE).all()
