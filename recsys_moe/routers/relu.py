"""ReMoE: the ReLU of a linear gate decides and weighs; an L1 term makes it sparse.

Wang, Chen and Zhu 2024, https://arxiv.org/abs/2412.14711, section 3. Axes: B batch, E experts,
D input width.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor

from recsys_moe.routers.base import AllSum, GatedRouter, RouterShape, Routing
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.replay import count_once
from recsys_moe.routers.settings import NO_PROBABILITIES, KConfig

FACTOR_RANGE = (1e-12, 1e6)
"""Range of the L1 factor: float32 holds it, and it needs few steps back from either end."""


class ReLURouter(GatedRouter):
    """w = ReLU(Ax + b): as many experts as have a positive logit, which may be none or all.

    About half of them at first. The L1 term, the mean over rows of the sum of w, has a factor that
    grows by `l1_growth` after a training step in which the rows of all processes chose more than k
    experts on average, shrinks by it after one with fewer, and stays after one with exactly k.
    `balanced` weighs each expert's part by n / k times the share of rows that chose it (1 for
    equal shares), those of this process.

    Weights may be of any size; a row without a positive logit has mixture 0. The choice is the
    sign of the logit, so the gradient is exact; it reaches the positive logits only.
    """

    class Config(KConfig):
        name: str = "relu"
        k: int = 2
        """Experts per example on average that the L1 term leads to, 1..num_experts."""
        l1_start: float = Field(default=1e-8, ge=FACTOR_RANGE[0], le=FACTOR_RANGE[1])
        """Factor of the L1 term before the first step."""
        l1_growth: float = Field(default=1.2, ge=1, allow_inf_nan=False)
        """By how much a step may multiply or divide that factor; 1 leaves it."""
        balanced: bool = False
        """The L1 term costs more for experts that more rows chose."""

        @property
        def idle_penalties(self) -> dict[str, str]:
            return NO_PROBABILITIES

    summary = "ReLU of a linear gate, led to k experts on average by an L1 term (ReMoE)"
    sparsity = "dense to sparse"

    l1_factor: Tensor
    """(), float32, within FACTOR_RANGE."""

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        self.register_buffer("l1_factor", torch.tensor(config.l1_start))
        self._counted: Tensor | None = (
            None  # chosen pairs, rows: of this process since `on_step_end`
        )

    @property
    def max_sum(self) -> float:
        return math.inf

    @property
    def loss_weights(self) -> dict[str, float]:
        return {"l1": float(self.l1_factor)}

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        logits_BE = gate_logits(self.gate, x_BD)
        selected_BE = ~(logits_BE <= 0)  # and not > 0, which would hide a NaN
        weights_BE = logits_BE.relu()
        if self.training:
            self._count(selected_BE)
        return Routing(weights_BE, selected_BE, losses={"l1": self._l1(weights_BE, selected_BE)})

    def on_step_end(self, all_sum: AllSum) -> None:
        own, self._counted = self._counted, None
        pairs, rows = all_sum(self.gate.weight.new_zeros(2).long() if own is None else own)
        direction = (pairs - self.config.k * rows).sign().float()
        self.l1_factor.mul_(self.config.l1_growth**direction).clamp_(*FACTOR_RANGE)

    def _count(self, selected_BE: Tensor) -> None:
        pairs = selected_BE.sum()
        counted = torch.stack([pairs, torch.full_like(pairs, len(selected_BE))])
        self._counted = count_once(self._counted, counted)

    def _l1(self, weights_BE: Tensor, selected_BE: Tensor) -> Tensor:
        """() from the mean weight of each expert."""
        mean_E = weights_BE.mean(0)
        if not self.config.balanced:
            return mean_E.sum()
        share_E = selected_BE.float().mean(0)
        return (mean_E * share_E).sum() * (self.shape.num_experts / self.config.k)
