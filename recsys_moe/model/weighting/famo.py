"""FAMO: all losses fall at the same relative rate, at the cost of one more forward pass.

Liu et al., NeurIPS 2023, https://arxiv.org/abs/2306.03792, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from recsys_moe.model.weighting.base import OwnAdam, Step, Weighting, WeightingConfig

LEAST = 1e-8
"""Added to losses, as in the authors' code, so that logarithms are finite."""


class FAMOWeighting(Weighting):
    """Weigh the tasks by z = softmax(xi) of their logarithms of losses.

    A step follows c sum_i (z_i / L_i) grad L_i with 1 / c = sum_i z_i / L_i, so the factors times
    the losses are c z and the factors sum to 1. After the step, with d_i = log L_i before less
    log L_i after it, of the same rows and draws, xi follows -(J^T d + decay xi), J the Jacobian of
    the softmax: (J^T d)_i = z_i (d_i - sum_j z_j d_j). A task whose loss fell the least gains. As
    in the authors' code, Adam moves xi.
    """

    class Config(WeightingConfig):
        name: str = "famo"
        lr: float = Field(default=0.025, gt=0, allow_inf_nan=False)
        """Learning rate (Adam) of the logits of the task weights, as in the authors' code."""
        decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
        """Weight decay of these logits, the paper's gamma, as in the authors' code: larger keeps
        the weights closer to equal."""

    summary = "evens out the relative fall of losses (Liu et al. 2023)"
    looks_back = True

    logit_T: Tensor

    def __init__(self, config: Config, units: Sequence[float]) -> None:
        super().__init__(config, units)
        self.decay = config.decay
        self.register_buffer("logit_T", torch.zeros(len(units), dtype=torch.float64))
        self.adam = OwnAdam(len(units), config.lr)

    def weigh(self, step: Step, model: nn.Module) -> Tensor:
        losses_T = step.all_mean(step.losses_T.detach()).double() + LEAST
        self._before = losses_T.log(), step.present_T
        shares_T = softmax_of(self.logit_T, step.present_T) / losses_T
        return shares_T / shares_T.sum().clamp(min=LEAST)

    def on_step_end(self, losses_T: Tensor) -> None:
        logs_T, present_T = self._before
        fallen_T = torch.where(present_T, logs_T - (losses_T.double() + LEAST).log(), 0.0)
        z_T = softmax_of(self.logit_T, present_T)
        gradient_T = z_T * (fallen_T - (z_T * fallen_T).sum())
        self.adam.move(self.logit_T, gradient_T + self.decay * self.logit_T, present_T)


def softmax_of(logits_T: Tensor, where_T: Tensor) -> Tensor:
    """Softmax over the tasks of `where_T`; 0 for the others, and where there are none."""
    return logits_T.masked_fill(~where_T, -torch.inf).softmax(0).nan_to_num()
