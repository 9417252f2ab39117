"""Top-k gating (Shazeer et al. 2017, https://arxiv.org/abs/1701.06538, eq. 3 and 5, no noise)."""

from __future__ import annotations

from torch import Tensor

from recsys_moe.routers.base import (
    Router,
    RouterConfig,
    RouterShape,
    Routing,
    check_k,
    gate_logits,
    largest_k,
    linear_gate,
    softmax_over,
)


class TopKRouter(Router):
    """Keep the k largest logits and take the softmax over them, in training and evaluation.

    The gradient reaches the kept logits only; with k = 1 it is identically zero.
    """

    class Config(RouterConfig):
        name: str = "topk"
        k: int = 2
        """Experts kept per example, 1..num_experts."""

        def check(self, num_experts: int) -> None:
            check_k(self.k, num_experts)

    summary = "softmax over the k largest logits"

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        self.gate = linear_gate(shape)

    @property
    def max_selected(self) -> int:
        return self.config.k

    def forward(self, x_BD: Tensor) -> Routing:
        logits_BE = gate_logits(self.gate, x_BD)
        selected_BE = largest_k(logits_BE, self.config.k)
        weights_BE = softmax_over(logits_BE, selected_BE)
        return Routing(weights_BE, selected_BE, logits_BE.softmax(-1), logits_BE)
