"""What DSelect-k and COMET share: the smooth-step function in place of the sigmoid.

Hazimeh et al. 2020, "The Tree Ensemble Layer", https://arxiv.org/abs/2002.07772.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from recsys_moe.routers.settings import NO_ROWS, KConfig


class SmoothConfig(KConfig):
    """Settings of both: k choices by smooth-steps among at least two experts."""

    gamma: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Width of the smooth-step; > 0, searched 0.01..10. Small ones become sparse earlier."""

    def check(self, num_experts: int) -> None:
        super().check(num_experts)
        if num_experts < 2:
            raise ValueError(
                f"model.num_experts must be at least 2 for {self.name}, got {num_experts}; "
                "raise it or use the softmax router"
            )

    @property
    def idle_penalties(self) -> dict[str, str]:
        return dict.fromkeys(("load", "z_loss"), "has no logits of the experts") | NO_ROWS


def smooth_step(t: Tensor, gamma: float) -> Tensor:
    """Cubic from 0 at t <= -gamma/2 to 1 at t >= gamma/2, both reached exactly; any shape.

    S(t) = 1/2 + 3t/(2 gamma) - 2 t^3/gamma^3 in between, written as u^2 (3 - 2u) with
    u = t/gamma + 1/2, which never rounds to below 0. Use 1 - S(t) = S(-t) for the complement, for
    the same reason. The gradient is continuous and exactly 0 outside: a gate that has
    reached 0 or 1 stays there.
    """
    u = (t / gamma + 0.5).clamp(0.0, 1.0)
    return u * u * (3.0 - 2.0 * u)


def entropy(probs: Tensor) -> Tensor:
    """-p log(p + 1e-6), elementwise: 0 at p = 0 and about 0 at p = 1."""
    return -probs * torch.log(probs + 1e-6)


def uniform_linear(input_dim: int, output_dim: int, bound: float) -> nn.Linear:
    """Linear map with kernel and bias from U(-bound, bound)."""
    linear = nn.Linear(input_dim, output_dim)
    nn.init.uniform_(linear.weight, -bound, bound)
    nn.init.uniform_(linear.bias, -bound, bound)
    return linear
