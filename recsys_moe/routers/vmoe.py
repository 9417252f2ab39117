"""V-MoE gating (Riquelme et al. 2021, https://arxiv.org/abs/2106.05974, section 2)."""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from recsys_moe.routers.base import Routing, SparseGatedRouter
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.selection import kept_softmax, largest_k
from recsys_moe.routers.settings import KConfig


class VMoERouter(SparseGatedRouter):
    """Keep the k largest entries of softmax(Ax + b + noise), without renormalising them.

    The noise, N(0, (noise / E)^2) per example and expert, is drawn in training only; the noisy
    probabilities both select and weigh. The weights of a row sum to less than 1, so the gradient
    reaches every logit through the denominator, also with k = 1.

    Unlike the authors' code: the gate has a bias, experts have no capacity limit (nothing is
    dropped, hence no batch priority), and the importance and load losses are off by default
    (`penalties.importance` and `penalties.load`, 0.005 each there).
    """

    class Config(KConfig):
        name: str = "vmoe"
        noise: float = Field(default=1.0, ge=0, allow_inf_nan=False)
        """Standard deviation of the training noise on the logits, times 1/num_experts; >= 0."""

    summary = "top-k of a noisy softmax, not renormalised (V-MoE)"

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        clean_BE = gate_logits(self.gate, x_BD)
        if not self.training:
            return kept_softmax(clean_BE, largest_k(clean_BE, self.config.k))
        noisy_BE = self._noisy(clean_BE)
        routing = kept_softmax(noisy_BE, largest_k(noisy_BE, self.config.k))
        return replace(routing, clean_logits_BE=clean_BE)

    def _noisy(self, logits_BE: Tensor) -> Tensor:
        std = self.config.noise / self.shape.num_experts
        generator = self.stream.generator(logits_BE.device)
        return logits_BE + std * torch.empty_like(logits_BE).normal_(generator=generator)
