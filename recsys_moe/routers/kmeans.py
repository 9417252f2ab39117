"""Online k-means: an expert is the running mean of the rows that it was given.

Ahrac, Hochwald and Geva 2026, "Routers Learn the Geometry of Their Experts: Geometric Coupling in
Sparse Mixture-of-Experts", https://arxiv.org/abs/2605.12476; from its abstract and summaries, as
the paper could not be read in full. Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from recsys_moe.routers.base import AllSum, Router, RouterShape, Routing
from recsys_moe.routers.precision import full_precision
from recsys_moe.routers.replay import count_once
from recsys_moe.routers.selection import largest_k, unit_rows
from recsys_moe.routers.settings import FixedConfig, KConfig


class KMeansRouter(Router):
    """The k experts whose means are nearest to x by the cosine, each with weight 1/k.

    The means start as random directions. After a training step the mean of an expert that was
    given rows becomes `decay` times itself plus 1 - decay times their mean, over the rows of all
    processes; that of another stays. Nothing has a gradient: x follows the experts' losses alone.

    The paper names the running average and the cosine; the start, the decay and the equal weights
    are ours.
    """

    class Config(KConfig, FixedConfig):
        name: str = "kmeans"
        decay: float = Field(default=0.9, ge=0, lt=1)
        """Share of a mean that a training step keeps."""

    summary = "the k experts whose running means of rows are nearest (online k-means)"

    mean_ED: Tensor
    """float32."""

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        start_ED = torch.randn(shape.num_experts, shape.input_dim)
        self.register_buffer("mean_ED", unit_rows(start_ED))
        self._given: Tensor | None = None  # sums of rows and their numbers since `on_step_end`

    @property
    def max_selected(self) -> int:
        return int(self.config.k)

    @torch.no_grad()
    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        x_BD = full_precision(x_BD)
        with torch.autocast(x_BD.device.type, enabled=False):
            cosines_BE = unit_rows(x_BD) @ unit_rows(self.mean_ED.to(x_BD.dtype)).t()
            selected_BE = largest_k(cosines_BE, self.config.k)
            if self.training:
                chosen_EB = selected_BE.to(x_BD.dtype).t()
                given = torch.cat([chosen_EB @ x_BD, chosen_EB.sum(1, keepdim=True)], dim=1)
                self._given = count_once(self._given, given)
        shares_BE = 1 / self.config.k + 0 * cosines_BE  # NaN where x is, see `Routing`
        weights_BE = torch.where(selected_BE, shares_BE, torch.zeros_like(shares_BE))
        return Routing(weights_BE, selected_BE)

    def on_step_end(self, all_sum: AllSum) -> None:
        own, self._given = self._given, None
        num_experts, width = self.mean_ED.shape
        nothing = self.mean_ED.new_zeros(num_experts, width + 1)
        given = all_sum(nothing if own is None else own.to(nothing))
        rows_E1 = given[:, -1:]
        kept_E1 = torch.where(rows_E1 > 0, self.config.decay, torch.ones_like(rows_E1))
        mean_ED = given[:, :-1] / rows_E1.clamp(min=1)
        self.mean_ED.mul_(kept_E1).add_((1 - kept_E1) * mean_ED)
