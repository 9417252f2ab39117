"""PPS: draw k experts with probability proportional to size, weigh them by its inverse.

Systematic sampling (Madow 1949, https://doi.org/10.1214/aoms/1177730077) with inclusion
probabilities pi_i = min(1, c g_i), sum pi = k, and the weights g_i / pi_i of Horvitz and Thompson
(1952, https://doi.org/10.1080/01621459.1952.10483446).
Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from recsys_moe.routers.base import Routing
from recsys_moe.routers.joint import JointConfig, JointRouter, Shared, within
from recsys_moe.routers.selection import keep_selected, largest_k, softmax_over
from recsys_moe.routers.systematic import draw_systematic, inclusion_probabilities


class PPSRouter(JointRouter):
    """Sampling router: an unbiased k-sparse estimate of the dense softmax.

    g = softmax((Ax + b) / temperature). Training draws exactly k experts, an expert with a large g
    always, and weighs them g_i / pi_i with pi held fixed in the gradient. Then the weights sum to
    1, and the mean over the draws of the mixture, and of its gradient by g, is that of the dense
    softmax. Evaluation is deterministic: the softmax over the k largest logits, or dense.
    """

    class Config(JointConfig):
        name: str = "pps"
        temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
        """Divides the logits, so it changes the draws as well as the weights; > 0."""
        inference: Literal["sparse", "dense"] = "sparse"
        """At evaluation: the k largest probabilities, renormalised, or all experts."""

    summary = "samples k experts per example, an unbiased estimate of the dense softmax"

    @property
    def max_selected(self) -> int:
        dense = not self.training and self.config.inference == "dense"
        return self.shape.num_experts if dense else self.config.k

    @property
    def max_sum(self) -> float:
        return float(self.shape.num_tasks) if self.training and self.config.joint else 1.0

    @property
    def draws(self) -> bool:
        return self.training

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        return self.among(self.logits(x_BD), None)

    def among(self, logits_BE: Tensor, shared: Shared | None) -> Routing:
        """Training draws k of the shared with pi' by g / pi and weighs them g / (pi pi')."""
        probs_BE = logits_BE.softmax(-1)
        if self.training:
            return self._sampled(logits_BE, probs_BE, shared)
        if self.config.inference == "dense":
            everyone_BE = torch.ones_like(probs_BE, dtype=torch.bool)
            return Routing(probs_BE, everyone_BE, probs_BE, logits_BE)
        selected_BE = largest_k(within(logits_BE, shared), self.config.k)
        return Routing(softmax_over(logits_BE, selected_BE), selected_BE, probs_BE, logits_BE)

    def _sampled(self, logits_BE: Tensor, probs_BE: Tensor, shared: Shared | None) -> Routing:
        generator = self.stream.generator(logits_BE.device)
        with torch.no_grad():
            inclusion_BE = inclusion_probabilities(within(logits_BE, shared), self.config.k)
            selected_BE = draw_systematic(inclusion_BE, generator)
            if shared is not None:
                inclusion_BE *= shared.log_inclusion_BE.exp()
            inclusion_BE = inclusion_BE.to(probs_BE.dtype).masked_fill_(~selected_BE, 1)
        weights_BE = keep_selected(probs_BE / inclusion_BE, selected_BE)
        return Routing(weights_BE, selected_BE, probs_BE, logits_BE)
