"""Routing by sparsity-constrained optimal transport: at most k experts, roughly balanced.

Liu et al. 2023, https://arxiv.org/abs/2209.15466 (semi-dual with the squared 2-norm).
Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from recsys_moe.routers.base import Routing, SparseGatedRouter
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.selection import keep_selected
from recsys_moe.routers.settings import KConfig

BETAS = (0.9, 0.999)
"""Adam's, for the ascent of the dual."""


class SparseOTRouter(SparseGatedRouter):
    """w = softmax(Ax + b) on the support of the transport plan, not renormalised.

    The plan has row sums 1, column sums near B/E and at most k non-zeros per row. The balance
    couples the rows of a group: in training the batch; in evaluation `eval_group` rows in a row, so
    that results do not depend on an evaluation batch size that is a multiple of it. A single row
    is a group of its own. No gradient flows through the plan, as in the authors' code.
    """

    class Config(KConfig):
        name: str = "sparse_ot"
        k: int = 2
        """Most experts per example, 1..num_experts."""
        gamma: float = Field(default=1.0, gt=0, allow_inf_nan=False)
        """Strength of the regularisation, > 0; small ones use fewer experts than k."""
        steps: int = Field(default=20, ge=0)
        """Steps of Adam on the dual; 0 does not balance at all."""
        step_size: float = Field(default=1e-2, gt=0, allow_inf_nan=False)
        """Learning rate of these steps, > 0."""
        eval_group: int = Field(default=512, ge=1)
        """Rows that are balanced together in evaluation, >= 1; make it the training batch size."""

    summary = "at most k experts per example by sparse optimal transport, roughly balanced"
    batch_dependent = True

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        logits_BE = gate_logits(self.gate, x_BD)
        probs_BE = logits_BE.softmax(-1)
        rows = len(x_BD) if self.training else self.config.eval_group
        with torch.no_grad():
            selected_BE = torch.cat([self._support(group) for group in probs_BE.split(rows)])
        return Routing(keep_selected(probs_BE, selected_BE), selected_BE, probs_BE, logits_BE)

    def _support(self, similarity_BE: Tensor) -> Tensor:
        """bool (B, E): where the plan of this group is positive; 1..k per row."""
        config = self.config
        price_E = dual_prices(
            similarity_BE, config.k, config.gamma, steps=config.steps, step_size=config.step_size
        )
        return sparse_projection((similarity_BE + price_E) / config.gamma, config.k)[1]


def dual_prices(
    similarity_BE: Tensor, k: int, gamma: float, *, steps: int, step_size: float
) -> Tensor:
    """Prices (E,) after ascending the semi-dual with Adam, from 0.

    Gradient of a price: what its expert should get, 1/E of the rows, less what it gets. The
    k-sparse semi-dual is not smooth; the steps improve the balance without converging.
    """
    num_experts = similarity_BE.shape[1]
    price_E = similarity_BE.new_zeros(num_experts)
    mean_E, square_E = torch.zeros_like(price_E), torch.zeros_like(price_E)
    for step in range(1, steps + 1):
        plan_BE, _ = sparse_projection((similarity_BE + price_E) / gamma, k)
        gradient_E = 1 / num_experts - plan_BE.mean(0)
        mean_E = torch.lerp(gradient_E, mean_E, BETAS[0])
        square_E = torch.lerp(gradient_E**2, square_E, BETAS[1])
        scale_E = (square_E / (1 - BETAS[1] ** step)).sqrt() + 1e-8
        price_E = price_E + step_size * mean_E / (1 - BETAS[0] ** step) / scale_E
    return price_E


def sparse_projection(values_BE: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Euclidean projection of each row on the simplex with at most k non-zeros, and its support.

    The k largest entries are projected on the simplex (Kyrillidis et al. 2013, which is exact):
    max(v - t, 0) with t such that the sum is 1. Among equals the lower index wins. (B, E) each.
    """
    ordered = values_BE.sort(dim=-1, descending=True, stable=True)
    index_BK = ordered.indices[:, :k]
    top_BK = ordered.values[:, :k] - ordered.values[:, :1]  # same result; - 1 below is not lost
    size_K = torch.arange(1, k + 1, device=values_BE.device)
    level_BK = (top_BK.cumsum(-1) - 1) / size_K
    inside_BK = ~(top_BK <= level_BK)  # true for the first few, always for the first, and for NaN
    threshold_B1 = level_BK.gather(1, inside_BK.sum(-1, keepdim=True) - 1)
    mass_BK = (top_BK - threshold_B1).masked_fill(~inside_BK, 0.0)
    support_BE = torch.zeros_like(values_BE, dtype=torch.bool).scatter(1, index_BK, inside_BK)
    return torch.zeros_like(values_BE).scatter(1, index_BK, mass_BK), support_BE
