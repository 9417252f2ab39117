"""The layer inside the transforms of torch.func."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from recsys_moe.model.experts import Experts
from recsys_moe.model.moe import Dispatch, MoE
from recsys_moe.routers import ROUTERS, router

B, D, E, H = 12, 6, 4, 5


def layer_of(name: str, dispatch: Dispatch = "auto", *, stacked: bool = True) -> MoE:
    torch.manual_seed(0)
    sizes = {"input_dim": D, "num_experts": E, "num_users": B, "num_tasks": 2}
    routers = [router(name, **sizes, task=task) for task in range(2)]  # type: ignore[arg-type]
    experts = Experts(E, D, H) if stacked else [nn.Linear(D, H) for _ in range(E)]
    return MoE(experts, routers, dispatch, seed=3)


def check_gradients(layer: MoE) -> None:
    """torch.func.grad gives what backward does; zeros where that gives none."""
    x_BD, user_B = torch.randn(B, D), torch.arange(B)
    weights = dict(layer.named_parameters())

    def loss(weights: dict[str, Tensor]) -> Tensor:
        layer.reseed(7)
        mixed: Tensor = functional_call(layer, weights, (x_BD, user_B))[0]
        return mixed.square().mean()

    found = grad(loss)(weights)
    loss(weights).backward()
    for name, weight in weights.items():
        wanted = torch.zeros_like(weight) if weight.grad is None else weight.grad
        torch.testing.assert_close(found[name], wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_func_grad_is_the_gradient_of_backward(name: str, training: bool) -> None:
    check_gradients(layer_of(name).train(training))


@pytest.mark.parametrize("dispatch", ["sparse", "dense"])
def test_func_grad_goes_through_any_dispatch_and_modules(dispatch: Dispatch) -> None:
    check_gradients(layer_of("topk", dispatch))
    check_gradients(layer_of("topk", dispatch, stacked=False))
