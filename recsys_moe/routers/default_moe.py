"""Top-k with expert output means for the rest (Panda et al. 2025, https://arxiv.org/abs/2504.12463).

Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field
from torch import Tensor

from recsys_moe.routers.base import Routing, SparseGatedRouter
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.selection import kept_softmax, largest_k
from recsys_moe.routers.settings import KConfig


class DefaultMoERouter(SparseGatedRouter):
    """y = sum_S g_i E_i(x) + sum_{not S} g_i m_i: g = softmax(Ax + b), S its k largest.

    m_i is the running mean of E_i's outputs, which the layer keeps
    (`recsys_moe.model.output_means`): all weights together sum to 1, and every logit has the
    gradient of a dense softmax in which the other experts output their mean. Inference does the
    same and does not move the means.
    """

    class Config(KConfig):
        name: str = "default_moe"
        momentum: float = Field(default=0.9, ge=0, lt=1)
        """Share of a running mean that a training step keeps."""

    summary = "top-k of a softmax, output means for the other experts (Default MoE)"

    @property
    def mean_momentum(self) -> float | None:
        return float(self.config.momentum)

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        logits_BE = gate_logits(self.gate, x_BD)
        routing = kept_softmax(logits_BE, largest_k(logits_BE, self.config.k))
        assert routing.probs_BE is not None
        absent_BE = routing.probs_BE.masked_fill(routing.selected_BE, 0.0)
        return replace(routing, default_weights_BE=absent_BE)
