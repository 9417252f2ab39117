"""GradNorm: tasks that learn slowly get larger gradients.

Chen et al., ICML 2018, https://arxiv.org/abs/1711.02257, section 3 and algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from recsys_moe.model.weighting.base import OwnAdam, Step, Weighting, WeightingConfig, task_gram

LEAST = 1e-8
"""Of a factor and of a loss, so that ratios are finite."""


class GradNormWeighting(Weighting):
    """Move the gradient norms G_i = |grad_W w_i L_i| to mean(G) r_i^alpha.

    r_i, the relative inverse training rate, is L_i(t) / L_i(0) over its mean. The factors w follow
    the gradient of sum_i |G_i - mean(G) r_i^alpha|, the targets held constant (equation 2), and
    then are scaled to sum to their number. They start at 1. W is what the model calls
    `last_shared` (the experts), or all parameters. L_i(0) is the loss in the first step that has
    labels of the task.
    """

    class Config(WeightingConfig):
        name: str = "gradnorm"
        alpha: float = Field(default=1.5, ge=0, allow_inf_nan=False)
        """How strongly tasks are kept at one pace: 0 evens out the gradients alone. The paper uses
        1.5, and 0.12 for alike tasks."""
        lr: float = Field(default=0.025, gt=0, allow_inf_nan=False)
        """Learning rate (Adam) of the factors, as in the paper's experiments."""

    summary = "evens out gradient norms, more for slow tasks (Chen et al. 2018)"
    needs_gradients = True

    factor_T: Tensor
    first_loss_T: Tensor

    def __init__(self, config: Config, units: Sequence[float]) -> None:
        super().__init__(config, units)
        self.alpha = config.alpha
        self.register_buffer("factor_T", torch.ones(len(units), dtype=torch.float64))
        self.register_buffer("first_loss_T", torch.zeros(len(units), dtype=torch.float64))
        self.adam = OwnAdam(len(units), config.lr)

    def weigh(self, step: Step, model: nn.Module) -> Tensor:
        shared = getattr(model, "last_shared", None) or list(model.parameters())
        norms_T = task_gram(step, shared).diagonal().sqrt()
        losses_T = step.all_mean(step.losses_T.detach()).double()
        factors_T = self.factor_T.clone()
        self._update(norms_T, losses_T.clamp(min=LEAST), step.present_T)
        return factors_T

    def _update(self, norms_T: Tensor, losses_T: Tensor, present_T: Tensor) -> None:
        is_first_T = present_T & (self.first_loss_T == 0)
        self.first_loss_T.copy_(torch.where(is_first_T, losses_T, self.first_loss_T))
        ratios_T = losses_T / torch.where(present_T, self.first_loss_T, 1.0)
        rates_T = ratios_T / mean_over(ratios_T, present_T)
        own_T = self.factor_T * norms_T
        targets_T = mean_over(own_T, present_T) * rates_T**self.alpha
        self.adam.move(self.factor_T, norms_T * (own_T - targets_T).sign(), present_T)
        self.factor_T.clamp_(min=LEAST)
        trained_T = self.first_loss_T > 0
        total = torch.where(trained_T, self.factor_T, 0.0).sum()
        scaled_T = self.factor_T * (trained_T.sum() / total)
        self.factor_T.copy_(torch.where(trained_T, scaled_T, self.factor_T))


def mean_over(values_T: Tensor, where_T: Tensor) -> Tensor:
    """Mean of `values_T` where `where_T`; above 0, so that it divides. ()"""
    total = torch.where(where_T, values_T, 0.0).sum()
    return (total / where_T.sum().clamp(min=1)).clamp(min=LEAST)
