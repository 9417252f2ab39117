"""Top-k gating (Shazeer et al. 2017, https://arxiv.org/abs/1701.06538, eq. 3 to 5)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from recsys_moe.routers.base import RouterShape, Routing
from recsys_moe.routers.joint import JointConfig, JointRouter, Shared, within
from recsys_moe.routers.permutation import LearnedPermutation
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.selection import largest_k, softmax_over
from recsys_moe.routers.settings import NO_ROWS

MIN_NOISE = 0.01
"""Least standard deviation of the noise, from the authors' code; the paper has none."""


class TopKRouter(JointRouter):
    """Keep the k largest logits and take the softmax over them, in training and evaluation.

    The gradient reaches the kept logits only; with k = 1 it is identically zero. `noise` adds
    N(0, 1) * (softplus(x W_noise) + 0.01) to the logits in training, with a learned W_noise that
    starts at 0 as in the authors' code (which also starts the gate at 0; ours is Glorot-uniform).
    """

    class Config(JointConfig):
        name: str = "topk"
        noise: bool = False
        """Add normal noise of a learned size to the logits in training."""
        permutation: bool = False
        """Learn a permutation of the experts (Top-k+ of Ibrahim et al. 2023)."""
        permutation_epochs: float = Field(default=5.0, gt=0, allow_inf_nan=False)
        """Epochs until the permutation is frozen, > 0; until then training is partly dense."""
        permutation_entropy: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
        """Weight of the permutation's entropy while it is learned."""

        def check(self, num_experts: int) -> None:
            super().check(num_experts)
            if self.joint and self.permutation:
                raise ValueError(
                    "model.router.joint must be 0 with model.router.permutation=true, got "
                    f"{self.joint}; leave one of them out"
                )

        @property
        def idle_penalties(self) -> dict[str, str]:
            if not self.permutation:
                return super().idle_penalties
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
    def repeats(self) -> bool:
        return self.permutation is None

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
        logits_BE, noise = self._noisy(x_BD)
        routing = self.among(logits_BE, None)
        vars(routing).update(noise)
        return routing if self.permutation is None else self.permutation(routing)

    def logits(self, x_BD: Tensor) -> Tensor:
        return self._noisy(x_BD)[0]

    def among(self, logits_BE: Tensor, shared: Shared | None) -> Routing:
        selected_BE = largest_k(within(logits_BE, shared), self.config.k)
        weights_BE = softmax_over(logits_BE, selected_BE)
        return Routing(weights_BE, selected_BE, logits_BE.softmax(-1), logits_BE)

    def _noisy(self, x_BD: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits, and what a Routing tells of their noise."""
        logits_BE = gate_logits(self.gate, x_BD)
        if not (self.training and self.config.noise):
            return logits_BE, {}
        scale_BE = F.softplus(gate_logits(self.noise_gate, x_BD)) + MIN_NOISE
        generator = self.stream.generator(logits_BE.device)
        noise_BE = torch.empty_like(logits_BE).normal_(generator=generator)
        noise = {"clean_logits_BE": logits_BE, "noise_scale_BE": scale_BE}
        return logits_BE + noise_BE * scale_BE, noise
