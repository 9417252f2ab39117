"""The mixture-of-experts layer: one router per task over a shared pool of experts.

Axes: B batch, T tasks, E experts, D input width, H expert width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import torch
from torch import Tensor, nn

from recsys_moe.errors import ConfigError
from recsys_moe.model.dispatch import dense_experts, sparse_experts
from recsys_moe.model.dropout import Dropout
from recsys_moe.routers import Router, Routing

DENSE_FROM = 0.85
"""Share of chosen pairs from which one batched matmul computes all (benchmarks/experts.py)."""
Dispatch = Literal["auto", "sparse", "dense"]


class Experts(nn.Module):
    """E one-layer experts, relu(x W_e + b_e) with dropout, in two stacked parameters.

    Stacked, an expert that nobody visits has a zero gradient and not a missing one. Kernels are
    Glorot-uniform per expert and biases zero (Keras' defaults, which the experiments used).
    """

    def __init__(self, num_experts: int, input_dim: int, expert_dim: int, dropout: float) -> None:
        super().__init__()
        self.kernel_EDH = nn.Parameter(torch.empty(num_experts, input_dim, expert_dim))
        self.bias_EH = nn.Parameter(torch.zeros(num_experts, expert_dim))
        for kernel_DH in self.kernel_EDH.unbind():
            nn.init.xavier_uniform_(kernel_DH.data)
        self.dropout = Dropout(dropout)


class MoE(nn.Module):
    """x -> one mixture of expert outputs per task.

    An expert is evaluated once per example even when several tasks chose it, so its dropout mask
    is shared by the tasks. `dispatch`: `sparse` evaluates the chosen pairs only; `dense` evaluates
    all experts and has static shapes (for export); `auto` is sparse when the routers are.
    """

    def __init__(
        self, experts: Experts, routers: Sequence[Router], dispatch: Dispatch = "auto"
    ) -> None:
        super().__init__()
        self.experts = experts
        self.routers = nn.ModuleList(routers)
        self.dispatch = dispatch

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> tuple[Tensor, list[Routing]]:
        """(B, D) and user indices (B,) -> mixtures (B, T, H) and the routing of each task."""
        weights_BTE, selected_BTE, routings = self._route(x_BD, user_B)
        experts = self.experts
        parts = experts.kernel_EDH, experts.bias_EH, experts.dropout
        if self._is_sparse(selected_BTE):
            return sparse_experts(x_BD, weights_BTE, selected_BTE, *parts), routings
        return dense_experts(x_BD, weights_BTE, *parts), routings

    def _route(self, x_BD: Tensor, user_B: Tensor | None) -> tuple[Tensor, Tensor, list[Routing]]:
        """Weights and selection (B, T, E), and the routing of each task."""
        routings = [router(x_BD, user_B) for router in self.routers]
        for router, routing in zip(self.routers, routings, strict=True):
            check_routing(routing, type(router).__name__, len(self.experts.kernel_EDH))
        weights_BTE = torch.stack([routing.weights_BE for routing in routings], dim=1)
        return weights_BTE, torch.stack([r.selected_BE for r in routings], dim=1), routings

    def _is_sparse(self, selected_BTE: Tensor) -> bool:
        if self.dispatch != "auto":
            return self.dispatch == "sparse"
        if torch.compiler.is_compiling() or _is_captured(selected_BTE):
            return False  # static shapes
        promised = sum(cast(Router, router).max_selected for router in self.routers)
        if promised < DENSE_FROM * len(self.experts.kernel_EDH):
            return True
        # Routers that become sparse as their gates saturate promise nothing: look.
        return selected_BTE.any(1).float().mean().item() < DENSE_FROM


def _is_captured(like: Tensor) -> bool:
    """Is a CUDA graph being recorded?"""
    return like.is_cuda and torch.cuda.is_current_stream_capturing()


def check_routing(routing: object, router: str, num_experts: int) -> None:
    """Raise ConfigError unless a router of somebody else's gave weights and a mask of E columns."""
    if not isinstance(routing, Routing):
        raise ConfigError(
            f"forward of router {router} must return a recsys_moe.routers.Routing, "
            f"got {type(routing).__name__}; see docs/routers.md, Your own router"
        )
    for name in ("weights_BE", "selected_BE"):
        shape = tuple(getattr(routing, name).shape)
        if len(shape) != 2 or shape[-1] != num_experts:
            raise ConfigError(
                f"{name} of router {router} must be (rows, model.num_experts={num_experts}), "
                f"got shape {shape}; use self.shape.num_experts"
            )


def naive_moe(x_BD: Tensor, weights_BTE: Tensor, kernel_EDH: Tensor, bias_EH: Tensor) -> Tensor:
    """The definition, without dropout: y_bt = sum_e w_bte relu(x_b W_e + b_e). (B, T, H).

    Slow and obvious; the fast paths are compared with it in values and gradients.
    """
    hidden = [
        torch.relu(x_BD @ kernel + bias) for kernel, bias in zip(kernel_EDH, bias_EH, strict=True)
    ]
    terms = [weights_BTE[:, :, e, None] * h_BH[:, None] for e, h_BH in enumerate(hidden)]
    return torch.stack(terms).sum(0)
