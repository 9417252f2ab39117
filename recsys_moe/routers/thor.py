"""THOR: random experts, made to agree (Zuo et al. 2021, https://arxiv.org/abs/2110.04260)."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from recsys_moe.routers.base import Router, Routing
from recsys_moe.routers.precision import full_precision
from recsys_moe.routers.settings import FixedConfig


class THORRouter(Router):
    """One random expert per mini-batch in training, the average of all at inference.

    A training step has two passes with independent draws and minimises, per task, the loss of
    both plus `consistency` times their disagreement: the symmetric Kullback-Leibler divergence of
    the paper for binary tasks and, ours, the squared difference for regression. The draws
    coincide with probability 1/E; then only dropout tells the passes apart.

    The authors' inference draws experts at random per token or sentence; averaging all of them is
    deterministic and evaluates every expert. No parameters.
    """

    class Config(FixedConfig):
        name: str = "thor"
        consistency: float = Field(default=1.0, ge=0, allow_inf_nan=False)
        """Weight of the disagreement between the passes, alpha in the paper; >= 0."""

    summary = "one random expert per mini-batch, two passes that must agree (THOR)"
    passes = 2

    @property
    def max_selected(self) -> int:
        return 1 if self.training else self.shape.num_experts

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        experts_E = torch.arange(self.shape.num_experts, device=x_BD.device)
        selected_E = experts_E == self._draw(x_BD.device) if self.training else experts_E >= 0
        selected_BE = selected_E.expand(x_BD.shape[0], -1)  # len() would fix the batch at export
        weights_BE = selected_BE.to(full_precision(x_BD).dtype) / self.max_selected
        return Routing(weights_BE, selected_BE)

    def _draw(self, device: torch.device) -> Tensor:
        """A uniform expert, shape (1,); no transfer from the device."""
        generator = self.stream.generator(device)
        return torch.randint(self.shape.num_experts, (1,), generator=generator, device=device)
