"""S-BASE: balanced training by optimal transport, softmax gate.

Clark et al. 2022, https://arxiv.org/abs/2202.01169 (their S-BASE).
Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor, nn

from recsys_moe.routers.base import Router, RouterShape, Routing
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.selection import kept_softmax, largest_k
from recsys_moe.routers.settings import RouterConfig
from recsys_moe.routers.sinkhorn import sinkhorn


class SinkhornBaseRouter(Router):
    """w = softmax(scores) on the one expert a, not renormalised.

    Training: a is the largest entry of the row in the transport plan with row sums 1 and column
    sums B/E, so loads are about equal and a row's expert depends on its batch. Evaluation: a
    is the best-scoring expert of the row itself. No gradient flows through the plan.
    """

    class Config(RouterConfig):
        name: str = "sinkhorn_base"
        rounds: int = Field(default=50, ge=1)
        """Rounds of Sinkhorn's algorithm in training, >= 1; more balance better."""

    summary = "one expert per example, balanced in training by optimal transport (S-BASE)"

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        self.gate = nn.Linear(shape.input_dim, shape.num_experts, bias=False)
        nn.init.xavier_uniform_(self.gate.weight)

    @property
    def expert_rows(self) -> Tensor:
        return self.gate.weight

    @property
    def max_selected(self) -> int:
        return 1

    @property
    def kept(self) -> int:
        return 1

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        logits_BE = gate_logits(self.gate, x_BD)
        preferred_BE = logits_BE.detach()
        if self.training:
            rows, num_experts = logits_BE.shape
            preferred_BE = sinkhorn(preferred_BE, self.config.rounds, max(rows, 1) / num_experts)
        return kept_softmax(logits_BE, largest_k(preferred_BE, 1))
