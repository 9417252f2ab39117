"""SMoE against golden numbers: A = [[1, 0], [0, 1], [-1, 1], [.5, -.5]], b = [0, .1, 0, -.1].

Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

import pytest
import torch

from recsys_moe.routers import RouterShape
from recsys_moe.routers.smoe import SMoERouter

X = torch.tensor([[1.0, 2]], dtype=torch.float64)
EPS = torch.tensor([1.02, 0.98], dtype=torch.float64)
L = torch.tensor([0.5, -1, 2.5, 0.25], dtype=torch.float64)


def golden_router(**settings: object) -> SMoERouter:
    router = SMoERouter(SMoERouter.Config(**settings), RouterShape(2, 4)).double().eval()
    with torch.no_grad():
        router.gate.weight.copy_(torch.tensor([[1, 0], [0, 1], [-1, 1], [0.5, -0.5]]))
        router.gate.bias.copy_(torch.tensor([0, 0.1, 0, -0.1]))
    return router


def test_jitter_multiplies_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """x * eps = [1.02, 1.96]: o = [1.02, 2.06, .94, -.57]."""
    router = golden_router(k=2).train()
    monkeypatch.setattr(router, "_jittered", lambda x_BD: x_BD * EPS)
    routing = router(X)
    assert routing.logits_BE[0].tolist() == pytest.approx([1.02, 2.06, 0.94, -0.57])
    expected = [0.201765, 0.570837, 0.186253, 0.041145]
    assert routing.probs_BE[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert routing.weights_BE[0].tolist() == pytest.approx([*expected[:2], 0, 0], abs=1e-6)


def test_the_kernel_gradient_sees_the_jittered_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """dA = do (x * eps)^T with do_j = g_j (L_j [j selected] - sum over selected of g_i L_i)."""
    router = golden_router(k=2).train()
    monkeypatch.setattr(router, "_jittered", lambda x_BD: x_BD * EPS)
    routing = router(X)
    (routing.weights_BE @ L).sum().backward()
    w_E, g_E = routing.weights_BE[0].detach(), routing.probs_BE[0].detach()
    do_E = w_E * L - g_E * (w_E @ L)
    torch.testing.assert_close(router.gate.bias.grad, do_E)
    torch.testing.assert_close(router.gate.weight.grad, torch.outer(do_E, X[0] * EPS))


def test_jitter_is_uniform_and_fresh_per_row_and_feature() -> None:
    """A range of .04 has std .04 / sqrt(12) = .011547; standard error of it about .00003."""
    router = SMoERouter(SMoERouter.Config(k=1), RouterShape(4, 4)).double().train()
    torch.nn.init.eye_(router.gate.weight)
    eps_BD = router(torch.ones(20_000, 4, dtype=torch.float64)).logits_BE
    assert eps_BD.min() >= 0.98 and eps_BD.max() <= 1.02
    assert eps_BD.mean().item() == pytest.approx(1, abs=2e-4)
    assert eps_BD.std().item() == pytest.approx(0.04 / 12**0.5, abs=2e-4)
    assert (torch.corrcoef(eps_BD.t()) - torch.eye(4)).abs().max() < 0.04


def test_jitter_is_not_rounded_to_bfloat16() -> None:
    """bfloat16 knows .98828125, .9921875, .99609375, 1, 1.0078125, 1.015625 near 1 and no more."""
    router = SMoERouter(SMoERouter.Config(), RouterShape(4, 4)).train()
    torch.nn.init.eye_(router.gate.weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits_BE = router(torch.ones(100, 4, dtype=torch.bfloat16)).logits_BE
    assert logits_BE.dtype == torch.float32 and logits_BE.unique().numel() > 300
