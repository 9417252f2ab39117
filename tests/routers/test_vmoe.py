"""V-MoE against golden numbers. o = [2, 1, 0, -1], g = softmax(o), L_i = dloss/dw_i.

The gate is the identity, so that the logits are the input. Axes: B batch, E experts.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recsys_moe.routers import RouterShape
from recsys_moe.routers.vmoe import VMoERouter

O = torch.tensor([[2.0, 1, 0, -1]], dtype=torch.float64)  # noqa: E741
L = torch.tensor([0.5, -1, 2.5, 0.25], dtype=torch.float64)


def identity_router(num_experts: int = 4, **settings: object) -> VMoERouter:
    router = VMoERouter(VMoERouter.Config(**settings), RouterShape(num_experts, num_experts))
    torch.nn.init.eye_(router.gate.weight)
    return router.double().eval()


def weigh(logits_BE: Tensor, k: int) -> Tensor:
    return identity_router(k=k)(logits_BE).weights_BE


def test_noise_selects_and_weighs(monkeypatch: pytest.MonkeyPatch) -> None:
    """o + eps = [1.5, 1.6, 0.1, -1]: softmax [.410871, .454083, .101320, .033726]."""
    eps = torch.tensor([-0.5, 0.6, 0.1, 0], dtype=torch.float64)
    router = identity_router(k=2).train()
    monkeypatch.setattr(router, "_noisy", lambda logits_BE: logits_BE + eps)
    routing = router(O)
    assert routing.weights_BE[0].tolist() == pytest.approx([0.410871, 0.454083, 0, 0], abs=1e-6)
    assert routing.probs_BE[0, 2:].tolist() == pytest.approx([0.101320, 0.033726], abs=1e-6)
    assert torch.equal(routing.clean_logits_BE, O)


def test_one_expert_still_teaches_the_router() -> None:
    logits_BE = O.clone().requires_grad_()
    (weigh(logits_BE, 1) @ L).sum().backward()
    assert (logits_BE.grad != 0).all()


def test_noise_has_mean_0_and_std_1_over_n_independent_per_row_and_expert() -> None:
    """80,000 draws: the standard error of the mean is .25 / 283 = .0009, of the std .0006."""
    router = identity_router(k=2).train()
    rows_BE = torch.zeros(20_000, 4, dtype=torch.float64)
    noise_BE = router(rows_BE).logits_BE
    assert noise_BE.mean().item() == pytest.approx(0, abs=0.004)
    assert noise_BE.std().item() == pytest.approx(1 / 4, abs=0.003)
    correlation_EE = torch.corrcoef(noise_BE.t()) - torch.eye(4)
    assert correlation_EE.abs().max() < 0.04  # standard error .007
    assert noise_BE.unique().numel() == noise_BE.numel()
