"""DSelect-k: k smooth selectors, each of which chooses an expert bit by bit.

Hazimeh et al. 2021, https://arxiv.org/abs/2106.03760.
Axes: B batch, E experts, K selectors, M bits of an expert's index, D input width.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from recsys_moe.routers.base import Router, RouterShape, Routing
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.smooth_step import SmoothConfig, entropy, smooth_step, uniform_linear


class DSelectKRouter(Router):
    """w = sum_j softmax(v)_j q_j, with q_j the product of the smooth-steps of expert i's bits.

    Dense at first: every expert has weight until the bits saturate at 0 or 1; then at most k
    experts are selected, which the layer notices by itself. A saturated bit has no gradient.

    Where num_experts is not a power of 2 some codes name no expert: their mass is lost (rows sum
    to less than 1) and `unused_codes` penalises it. The authors sum that penalty over the batch;
    ours is a mean, like all losses here, so its weight is not comparable with theirs.
    """

    class Config(SmoothConfig):
        name: str = "dselect_k"
        k: int = 2
        """Selectors, and so experts per example at the end of training; 1..num_experts."""
        entropy: float = Field(default=0.1, ge=0, allow_inf_nan=False)
        """Weight of the selectors' entropy, which drives them to one expert; searched 0.05..10
        on MovieLens and 1..100 on Books."""
        unused_codes: float = Field(default=1.0, ge=0, allow_inf_nan=False)
        """Weight of the penalty on codes that name no expert; no effect for a power of 2."""

    summary = "k selectors choose experts bit by bit; becomes sparse as training saturates them"
    sparsity = "dense to sparse"

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        self.num_bits = (shape.num_experts - 1).bit_length()
        bound = config.gamma / 100
        self.bit_gate = uniform_linear(shape.input_dim, config.k * self.num_bits, bound)
        self.selector_gate = uniform_linear(shape.input_dim, config.k, 0.05)

    @property
    def loss_weights(self) -> dict[str, float]:
        return {"entropy": self.config.entropy, "unused_codes": self.config.unused_codes}

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        num_experts = self.shape.num_experts
        bits_BKM = gate_logits(self.bit_gate, x_BD).unflatten(-1, (-1, self.num_bits))
        choice_BKE = code_probs(bits_BKM, self.config.gamma)[..., :num_experts]
        share_BK = gate_logits(self.selector_gate, x_BD).softmax(-1)
        weights_BE = (share_BK[..., None] * choice_BKE).sum(1)
        lost_B1 = (1 - weights_BE.sum(-1, keepdim=True)).clamp(min=0)
        return Routing(
            weights_BE,
            (choice_BKE != 0).any(1),
            # What went to unused codes is spread evenly, so that the rows sum to 1.
            probs_BE=weights_BE + lost_B1 / num_experts,
            losses={
                "entropy": entropy(choice_BKE).sum((1, 2)).mean(),
                "unused_codes": self._unused_codes(choice_BKE),
            },
        )

    def _unused_codes(self, choice_BKE: Tensor) -> Tensor:
        """sum_j 1 / (mass of selector j on experts), mean over rows; minimum k. (B, K, E) -> ()."""
        if self.shape.num_experts == 2**self.num_bits:
            return choice_BKE.new_zeros(())
        return (1 / (1e-6 + choice_BKE.sum(-1))).sum(-1).mean()


def code_probs(bits_BKM: Tensor, gamma: float) -> Tensor:
    """Probability of each M-bit code, most significant bit first. (B, K, M) -> (B, K, 2^M)."""
    zero_BKM, one_BKM = smooth_step(-bits_BKM, gamma), smooth_step(bits_BKM, gamma)
    probs = torch.ones_like(bits_BKM[..., :1])
    for bit in range(bits_BKM.shape[-1]):
        both = [probs * zero_BKM[..., bit, None], probs * one_BKM[..., bit, None]]
        probs = torch.stack(both, dim=-1).flatten(-2)
    return probs
