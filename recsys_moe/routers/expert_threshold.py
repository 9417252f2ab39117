"""Expert threshold: an expert takes a row where its score passes a running quantile.

Sun et al. 2026, https://arxiv.org/abs/2603.11535; read in a summary of its method and in the
authors' code (Expert-Threshold-Routing), not in full. Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from recsys_moe.routers.base import AllSum, GatedRouter, RouterShape, Routing
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.replay import count_once
from recsys_moe.routers.selection import largest_k, picks
from recsys_moe.routers.settings import NO_PROBABILITIES, KConfig


class ExpertThresholdRouter(GatedRouter):
    """w_i = sigmoid(o_i) where o_i >= c_i, o = Ax + b: as many experts as pass, k on average.

    c_i is the exponential moving average of the logit of the last row that expert i would take if
    each took an equal share of the training batch, S k / E rows: Expert Choice without dependence
    on the batch, in training and evaluation. Its start at 0 is corrected as Adam does. During the
    first `warmup` steps training uses the batch's own cutoffs, so that all experts learn.

    A row that passes nowhere takes the expert that it is least below; the paper has a shared
    expert for it. On several devices the cutoff is the mean of those of their parts. Weights are
    not renormalised, so the gradient reaches the logits of all selected experts.
    """

    class Config(KConfig):
        name: str = "expert_threshold"
        k: int = 2
        """Experts per example on average, about, 1..num_experts."""
        decay: float = Field(default=0.99, ge=0, lt=1)
        """Share of the running cutoffs that a training step keeps; 0.999 in the paper."""
        warmup: int = Field(default=100, ge=0)
        """Training steps in which the batch's own cutoffs decide; 4000 in the paper."""

        @property
        def idle_penalties(self) -> dict[str, str]:
            return NO_PROBABILITIES

    summary = "experts take the rows that pass their running quantile, k on average (ET)"
    sparsity = "k on average"

    cutoff_E: Tensor
    """float32; moving average of the cutoffs, from 0."""
    weight: Tensor
    """(), float32; moving average of 1, from 0: what `cutoff_E` is to be divided by."""
    steps: Tensor
    """(), int64, training steps so far."""

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        self.register_buffer("cutoff_E", torch.zeros(shape.num_experts))
        self.register_buffer("weight", torch.zeros(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self._seen: Tensor | None = None  # cutoffs (E) and passes (1), summed since `on_step_end`

    @property
    def max_sum(self) -> float:
        return float(self.shape.num_experts)

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        logits_BE = gate_logits(self.gate, x_BD)
        threshold_E = self.cutoff_E / torch.where(self.weight > 0, self.weight, 1.0)
        if self.training and len(x_BD):
            own_E = cutoffs(logits_BE.detach(), self.config.k)
            threshold_E = torch.where(self.steps < self.config.warmup, own_E, threshold_E)
            self._seen = count_once(self._seen, torch.cat([own_E, own_E.new_ones(1)]))
        above_BE = logits_BE.detach() - threshold_E
        selected_BE = ~(above_BE < 0)  # and not >= 0, which would hide a NaN
        is_none_B1 = ~selected_BE.any(-1, keepdim=True)
        selected_BE = selected_BE | (is_none_B1 & largest_k(above_BE, 1))
        weights_BE = torch.where(selected_BE, logits_BE.sigmoid(), torch.zeros_like(logits_BE))
        return Routing(weights_BE, selected_BE)

    def on_step_end(self, all_sum: AllSum) -> None:
        own, self._seen = self._seen, None
        like_E = self.cutoff_E
        seen = all_sum(like_E.new_zeros(len(like_E) + 1) if own is None else own.to(like_E))
        passes = seen[-1]
        kept = torch.where(passes > 0, self.config.decay, torch.ones_like(passes))
        self.cutoff_E.mul_(kept).add_((1 - kept) * seen[:-1] / passes.clamp(min=1))
        self.weight.mul_(kept).add_(1 - kept)
        self.steps.add_((passes > 0).long())


def cutoffs(logits_BE: Tensor, k: int) -> Tensor:
    """(E,): the smallest logit among the B * k / E largest of each column, rounded up."""
    rows, num_experts = logits_BE.shape
    return logits_BE.topk(picks(rows, num_experts, k), dim=0).values[-1]
