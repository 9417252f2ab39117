"""Uncertainty weighting: each task's loss is divided by its learned noise.

Kendall, Gal and Cipolla, CVPR 2018, https://arxiv.org/abs/1705.07115, section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from recsys_moe.model.weighting.base import OwnAdam, Step, Weighting, WeightingConfig


class UncertaintyWeighting(Weighting):
    """Minimise sum_t u_t L_t / sigma_t^2 + log sigma_t over model and sigma.

    u_t is 1/2 for squared errors (equation 7) and 1 for a log-likelihood (equation 10). As the
    paper advises, s_t = log sigma_t^2 is learned: the factor is u_t exp(-s_t), the gradient of s_t
    is 1/2 - u_t exp(-s_t) L_t, and where it is 0, sigma_t^2 = 2 u_t L_t: the factor times the loss
    is 1/2 for every task, whatever its unit and its training weight.
    """

    class Config(WeightingConfig):
        name: str = "uncertainty"
        lr: float = Field(default=0.025, gt=0, allow_inf_nan=False)
        """Learning rate (Adam) of the logarithms of the variances. The paper names none; Chen et
        al. (2018) trained this method with 0.025."""

    summary = "divides each loss by a learned variance (Kendall et al. 2018)"

    log_variance_T: Tensor
    unit_T: Tensor

    def __init__(self, config: Config, units: Sequence[float]) -> None:
        super().__init__(config, units)
        self.register_buffer("unit_T", torch.tensor(units, dtype=torch.float64), False)
        self.register_buffer("log_variance_T", torch.zeros(len(units), dtype=torch.float64))
        self.adam = OwnAdam(len(units), config.lr)

    def weigh(self, step: Step, model: nn.Module) -> Tensor:
        losses_T = step.all_mean(step.losses_T.detach())
        factors_T = self.unit_T * torch.exp(-self.log_variance_T)
        self.adam.move(self.log_variance_T, 0.5 - factors_T * losses_T, step.present_T)
        return factors_T
