"""Top-k gating (Shazeer et al. 2017, https://arxiv.org/abs/1701.06538, eq. 3 to 5)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from recsys_moe.routers.base import NO_ROWS, GatedRouter, KConfig, RouterShape, Routing, gate_logits
from recsys_moe.routers.permutation import LearnedPermutation
from recsys_moe.routers.selection import largest_k, softmax_over

MIN_NOISE = 0.01
"""Least standard deviation of the noise, from the authors' code; the paper has none."""


class TopKRouter(GatedRouter):
    """Keep the k largest logits and take the softmax over them, in training and evaluation.

    The gradient reaches the kept logits only; with k = 1 it is identically zero. `noise` adds
    N(0, 1) * (softplus(x W_noise) + 0.01) to the logits in training, with a learned W_noise that
    starts at 0 as in the authors' code (which also starts the gate at 0; ours is Glorot-uniform).
    """

    class Config(KConfig):
        name: str = "topk"
        noise: bool = False
        """Add normal noise of a learned size to the logits in training."""
        permutation: bool = False
        """Learn a permutation of the experts (Top-k+ of Ibrahim et al. 2023)."""
        permutation_epochs: float = Field(default=5.0, gt=0, allow_inf_nan=False)
        """Epochs until the permutation is frozen, > 0; until then training is partly dense."""
        permutation_entropy: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
        """Weight of the permutation's entropy while it is learned."""

        @property
        def idle_penalties(self) -> dict[str, str]:
            if not self.permutation:
                return {}
            reason = "has no logits unless model.router.permutation=false"
            return dict.fromkeys(("load", "z_loss"), reason) | NO_ROWS

        @property
        def remarks(self) -> list[str]:
            if self.k > 1:
                return []
            return [
                "model.router.k is 1: the topk router gets no gradient from the tasks and keeps "
                "its initial choice of experts; use k=2, or vmoe or smoe, which learn with k=1"
            ]

    summary = "softmax over the k largest logits"
    sparsity = "dense to sparse"  # while a permutation is learned

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        if config.noise:
            self.noise_gate = nn.Linear(shape.input_dim, shape.num_experts, bias=False)
            nn.init.zeros_(self.noise_gate.weight)
        self.permutation = (
            LearnedPermutation(shape.num_experts, config.permutation_epochs)
            if config.permutation
            else None
        )

    @property
    def max_selected(self) -> int:
        soft = self.permutation is not None and self.permutation.is_soft
        return self.shape.num_experts if soft else self.config.k

    @property
    def loss_weights(self) -> dict[str, float]:
        if self.permutation is None:
            return {}
        return {"permutation": self.config.permutation_entropy}

    def set_epoch(self, epochs: float) -> None:
        if self.permutation is not None:
            self.permutation.set_epoch(epochs)

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        logits_BE = gate_logits(self.gate, x_BD)
        noise: dict[str, Any] = {}
        if self.training and self.config.noise:
            scale_BE = F.softplus(gate_logits(self.noise_gate, x_BD)) + MIN_NOISE
            noise = {"clean_logits_BE": logits_BE, "noise_scale_BE": scale_BE}
            generator = self.stream.generator(logits_BE.device)
            noise_BE = torch.empty_like(logits_BE).normal_(generator=generator)
            logits_BE = logits_BE + noise_BE * scale_BE
        selected_BE = largest_k(logits_BE, self.config.k)
        weights_BE = softmax_over(logits_BE, selected_BE)
        routing = Routing(weights_BE, selected_BE, logits_BE.softmax(-1), logits_BE, **noise)
        return routing if self.permutation is None else self.permutation(routing)
