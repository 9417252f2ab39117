"""SparseMixer-v2: draw experts, and correct the gradient of the draw by Heun's third-order rule.

Liu et al. 2023, https://arxiv.org/abs/2310.00811; version 2 is that of GRIN, Liu et al. 2024,
https://arxiv.org/abs/2409.12136, and of the authors' code. Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from recsys_moe.routers.base import Routing, SparseGatedRouter
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.settings import KConfig


class SparseMixerRouter(SparseGatedRouter):
    """Draw i from p = softmax of the logits o close to the largest, weigh it by m p_i; k times.

    Close is a relative gap (max o - o_j) / max(|o_j|, max o) of at most 2 epsilon. In training
    m = 1 if i has the largest logit, else 1 with probability 1/4 and 1/3 otherwise; the gradient is
    that of p_i whatever m. As Heun's rule has it, f(p) - f(0) = p (f'(p) / 4 + 3 f'(p / 3) / 4) for
    cubic f. Each further expert follows the same rule among those that are left, so the weights of
    a row are from k softmaxes and sum to at most k. Evaluation draws nothing: i is the largest,
    m is 1.

    The gradient reaches the logits that are close to the largest; a row with a single candidate
    has weight 1 and no gradient. `probs_BE` is the softmax of all logits, which penalties read.
    """

    class Config(KConfig):
        name: str = "sparsemixer"
        epsilon: float = Field(default=0.1, ge=0, allow_inf_nan=False)
        """Half the relative gap up to which logits are close; from 1 on all are."""

    summary = "draws experts with logits close to the largest, Heun's rule (SparseMixer-v2)"

    @property
    def max_sum(self) -> float:
        return float(self.config.k)

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        logits_BE = gate_logits(self.gate, x_BD)
        taken_BE = torch.zeros_like(logits_BE, dtype=torch.bool)
        weights_BE = torch.zeros_like(logits_BE)
        for _ in range(self.config.k):
            probs_BE = close_softmax(logits_BE, taken_BE, self.config.epsilon)
            # argmax, unlike max, gives the first of equals on every device
            best_B1 = probs_BE.detach().argmax(-1, keepdim=True)
            index_B1 = self._draw(probs_BE.detach()) if self.training else best_B1
            weight_B1 = probs_BE.gather(-1, index_B1)
            if self.training:
                weight_B1 = scaled(weight_B1, self._scale(index_B1 == best_B1, weight_B1))
            weights_BE = weights_BE.scatter(-1, index_B1, weight_B1)
            taken_BE = taken_BE.scatter(-1, index_B1, True)
        return Routing(weights_BE, taken_BE, logits_BE.softmax(-1), logits_BE)

    def _draw(self, probs_BE: Tensor) -> Tensor:
        """(B, 1): the keys p / -log(u) are in the order of log p + Gumbel noise."""
        tiny = torch.finfo(probs_BE.dtype).tiny
        negative_keys_BE = probs_BE / self._uniform(probs_BE).clamp_(min=tiny).log_()
        return negative_keys_BE.argmin(-1, keepdim=True)

    def _scale(self, is_best_B1: Tensor, like_B1: Tensor) -> Tensor:
        """m, (B, 1)."""
        is_one_B1 = is_best_B1 | (self._uniform(like_B1) < 1 / 4)
        return torch.where(is_one_B1, 1.0, torch.full_like(like_B1, 1 / 3))

    def _uniform(self, like: Tensor) -> Tensor:
        generator = self.stream.generator(like.device)
        return torch.rand(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def close_softmax(logits_BE: Tensor, taken_BE: Tensor, epsilon: float) -> Tensor:
    """Softmax over what is not taken and close to the largest of it, exactly 0 elsewhere.

    A row of NaN gives NaN. Each row needs an expert that is not taken.
    """
    with torch.no_grad():
        largest_B1 = logits_BE.masked_fill(taken_BE, -torch.inf).amax(-1, keepdim=True)
        # times the divisor and not divided by it, which may be 0
        divisor_BE = logits_BE.abs().maximum(largest_B1)
        is_far_BE = largest_B1 - logits_BE > 2 * epsilon * divisor_BE
    return logits_BE.masked_fill(is_far_BE | taken_BE, -torch.inf).softmax(-1)


def scaled(weight_B1: Tensor, scale_B1: Tensor) -> Tensor:
    """weight * scale, with the gradient of weight."""
    return weight_B1 - ((1 - scale_B1) * weight_B1).detach()
