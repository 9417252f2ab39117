"""PPS: draw k experts with probability proportional to size, weigh them by its inverse.

Systematic sampling (Madow 1949, https://doi.org/10.1214/aoms/1177730077) with inclusion
probabilities pi_i = min(1, c g_i), sum pi = k, and the weights g_i / pi_i of Horvitz and Thompson
(1952, https://doi.org/10.1080/01621459.1952.10483446).
Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from recsys_moe.routers.base import Routing
from recsys_moe.routers.joint import JointConfig, JointRouter, by_mixture, chosen_by, log_mixture
from recsys_moe.routers.selection import keep_selected, largest_k, softmax_over


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

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        logits_BE = self.logits(x_BD)
        probs_BE = logits_BE.softmax(-1)
        if self.training:
            return _weighed(*self._draw(logits_BE), logits_BE, probs_BE)
        if self.config.inference == "dense":
            everyone_BE = torch.ones_like(probs_BE, dtype=torch.bool)
            return Routing(probs_BE, everyone_BE, probs_BE, logits_BE)
        selected_BE = largest_k(logits_BE, self.config.k)
        return Routing(softmax_over(logits_BE, selected_BE), selected_BE, probs_BE, logits_BE)

    def together(self, routers: Sequence[JointRouter], x_BD: Tensor) -> list[Routing]:
        logits = [router.logits(x_BD) for router in routers]
        if not self.training:
            return by_mixture(logits, self.max_selected)
        log_q_BE = log_mixture([logits_BE.log_softmax(-1) for logits_BE in logits])
        draw = self._draw(log_q_BE)
        routings = [_weighed(*draw, logits_BE, logits_BE.softmax(-1)) for logits_BE in logits]
        return chosen_by(log_q_BE, routings)

    def _draw(self, logits_BE: Tensor) -> tuple[Tensor, Tensor]:
        """The drawn experts, bool (B, E), and pi with 1 elsewhere."""
        generator, device = self.stream.generator(logits_BE.device), logits_BE.device
        order_E = torch.rand(logits_BE.shape[-1], generator=generator, device=device)
        order_E = order_E.argsort(stable=True)
        uniform_B = torch.rand(len(logits_BE), generator=generator, device=device)
        with torch.no_grad():
            inclusion_BE = inclusion_probabilities(logits_BE, self.config.k)
            selected_BE = sample_systematic(inclusion_BE, uniform_B, order_E)
            return selected_BE, inclusion_BE.to(logits_BE.dtype).masked_fill_(~selected_BE, 1)

    @property
    def max_sum(self) -> float:
        return float(self.shape.num_tasks) if self.training and self.config.joint else 1.0


def _weighed(
    selected_BE: Tensor, inclusion_BE: Tensor, logits_BE: Tensor, probs_BE: Tensor
) -> Routing:
    weights_BE = keep_selected(probs_BE / inclusion_BE, selected_BE)
    return Routing(weights_BE, selected_BE, probs_BE, logits_BE)


def inclusion_probabilities(logits_BE: Tensor, k: int) -> Tensor:
    """pi = min(1, c softmax(logits)) with c such that rows sum to k. (B, E) float64.

    Experts are set to 1 until the others, which share what is left of k by their softmax, all stay
    below: at most k - 1 rounds. As a softmax over the others, and not as a quotient of
    probabilities, because those may all underflow next to a sure expert.
    """
    logits_BE = logits_BE.double().nan_to_num()  # NaN reaches the weights by g, see `Routing`
    lowest = torch.finfo(logits_BE.dtype).min  # not -inf: where all are sure it would be NaN
    sure_BE = torch.zeros_like(logits_BE, dtype=torch.bool)
    inclusion_BE = torch.zeros_like(logits_BE)
    for _ in range(k):
        rest_B1 = k - sure_BE.sum(-1, keepdim=True)
        others_BE = rest_B1 * logits_BE.masked_fill(sure_BE, lowest).softmax(-1)
        inclusion_BE = others_BE.masked_fill(sure_BE, 1.0)
        sure_BE = inclusion_BE >= 1
    return inclusion_BE.clamp_(max=1)


def sample_systematic(inclusion_BE: Tensor, uniform_B: Tensor, order_E: Tensor) -> Tensor:
    """Draw each expert with its probability, as many as these sum to. bool (B, E).

    Experts that are not sure lie behind each other on a line in the order `order_E`, each as long
    as its probability; those are drawn on which u, u + 1, u + 2, ... fall. `uniform_B` in [0, 1).
    """
    sure_BE = inclusion_BE >= 1
    ends_BE = inclusion_BE.masked_fill(sure_BE, 0)[:, order_E].cumsum(-1)
    length_B1 = ends_BE[:, -1:]
    ends_BE = ends_BE * (length_B1.round() / length_B1.clamp(min=0.5))  # whole, also when rounded
    marks_BE = (ends_BE - uniform_B[:, None]).ceil()  # passed at the end of each expert
    drawn_BE = marks_BE.diff(dim=-1, prepend=torch.zeros_like(length_B1)) > 0
    return sure_BE | drawn_BE[:, order_E.argsort(stable=True)]
