"""The dense softmax gate of MMoE (Ma et al. 2018, https://doi.org/10.1145/3219819.3220007)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from recsys_moe.routers.base import GatedRouter, Routing
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.selection import largest_k, softmax_over
from recsys_moe.routers.settings import RouterConfig, check_k


class SoftmaxRouter(GatedRouter):
    """Every example visits every expert: w = softmax(Ax + b).

    `inference: topk` keeps only the k largest probabilities at evaluation and renormalises them,
    the sparse inference on a densely trained model of the MOESART paper's Fig. 2e (which does not
    say whether it renormalises; we do).
    """

    class Config(RouterConfig):
        name: str = "softmax"
        inference: Literal["dense", "topk"] = "dense"
        """Experts used at evaluation: all of them, or the `inference_k` most probable."""
        inference_k: int = 2
        """Experts kept per example at evaluation when `inference` is `topk`."""

        def check(self, num_experts: int) -> None:
            if self.inference == "topk":
                check_k(self.inference_k, num_experts)

        @property
        def idle_penalties(self) -> dict[str, str]:
            return {"trimmed_lasso": "keeps all experts"}

    summary = "dense softmax over all experts (MMoE)"

    @property
    def max_selected(self) -> int:
        sparse = not self.training and self.config.inference == "topk"
        return self.config.inference_k if sparse else self.shape.num_experts

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        logits_BE = gate_logits(self.gate, x_BD)
        probs_BE = logits_BE.softmax(-1)
        if self.max_selected < self.shape.num_experts:
            selected_BE = largest_k(logits_BE, self.max_selected)
            return Routing(softmax_over(logits_BE, selected_BE), selected_BE, probs_BE, logits_BE)
        everyone_BE = torch.ones_like(probs_BE, dtype=torch.bool)
        return Routing(probs_BE, everyone_BE, probs_BE, logits_BE)
