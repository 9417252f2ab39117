"""DTop-p: as many experts as reach a probability of p together; a controller moves p.

Jin et al. 2025, "DTop-p MoE", https://arxiv.org/abs/2512.13996; read in summaries of its method,
not in full. Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from recsys_moe.routers.base import AllSum, GatedRouter, RouterShape, Routing
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.replay import count_once
from recsys_moe.routers.selection import descending_order, softmax_over
from recsys_moe.routers.settings import KConfig

P_RANGE = (1e-3, 1.0)


class TopPRouter(GatedRouter):
    """Keep the fewest experts whose probabilities sum to at least p, renormalised.

    o = Ax + b; with `normalize` each row of o is standardised and multiplied by a learned scale.
    After a training step with a mean of a experts per row the controller sets, with
    e = (k - a) / n, p = p_start + proportional * e + integral * (sum of all e so far), within
    P_RANGE; evaluation keeps the last p.

    The paper has one p for all layers of a model; here each task's router has its own, which it
    describes as a variant. The gains are ours. So that the sum does not run away while p is at a
    bound, it is kept within what moves p over the whole of P_RANGE.

    The gradient reaches the kept logits (all of a row through the standardisation), and none where
    a row keeps a single expert.
    """

    class Config(KConfig):
        name: str = "top_p"
        k: int = 2
        """Experts per example on average that the controller leads to, 1..num_experts."""
        p_start: float = Field(default=0.3, gt=0, le=1)
        """Probability that the kept experts reach together, before the first step."""
        proportional: float = Field(default=0.1, ge=0, allow_inf_nan=False)
        """How far p follows the error of the last step, which is in shares of all experts."""
        integral: float = Field(default=0.02, ge=0, allow_inf_nan=False)
        """How far p follows the sum of the errors of all steps; 0 and 0 leave p as it is."""
        normalize: bool = True
        """Standardise the logits of each row and learn their scale."""

    summary = (
        "as many experts as reach a probability together; k on average by a controller (DTop-p)"
    )
    sparsity = "k on average"

    p: Tensor
    """(), float32, within P_RANGE."""
    error_sum: Tensor
    """(), float32, of all training steps."""

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        if config.normalize:
            self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("p", torch.tensor(config.p_start))
        self.register_buffer("error_sum", torch.zeros(()))
        self._counted: Tensor | None = None  # chosen pairs, rows: since the last `on_step_end`

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        logits_BE = gate_logits(self.gate, x_BD)
        if self.config.normalize:
            logits_BE = self.scale * standardised(logits_BE)
        probs_BE = logits_BE.softmax(-1)
        selected_BE = fewest_reaching(probs_BE.detach(), self.p)
        if self.training:
            pairs = selected_BE.sum()
            counted = torch.stack([pairs, torch.full_like(pairs, len(selected_BE))])
            self._counted = count_once(self._counted, counted)
        return Routing(softmax_over(logits_BE, selected_BE), selected_BE, probs_BE, logits_BE)

    def on_step_end(self, all_sum: AllSum) -> None:
        own, self._counted = self._counted, None
        pairs, rows = all_sum(self.gate.weight.new_zeros(2).long() if own is None else own)
        config, num_experts = self.config, self.shape.num_experts
        error = ((config.k * rows - pairs) / (num_experts * rows).clamp(min=1)).float()
        self.error_sum.add_(error)
        if config.integral:
            self.error_sum.clamp_(-1 / config.integral, 1 / config.integral)
        p = config.p_start + config.proportional * error + config.integral * self.error_sum
        self.p.copy_(p.clamp(*P_RANGE))


def standardised(logits_BE: Tensor) -> Tensor:
    """Each row with mean 0 and standard deviation 1 (divided by E); a row of equals is 0."""
    centred_BE = logits_BE - logits_BE.mean(-1, keepdim=True)
    return centred_BE / (centred_BE.square().mean(-1, keepdim=True) + 1e-6).sqrt()


def fewest_reaching(probs_BE: Tensor, p: Tensor) -> Tensor:
    """bool (B, E): the largest entries of each row, until they sum to at least p; at least one.

    Among equals the lower index comes first. A row of NaN selects all, see `Routing`.
    """
    order_BE = descending_order(probs_BE)
    sorted_BE = probs_BE.gather(-1, order_BE)
    before_BE = sorted_BE.cumsum(-1) - sorted_BE  # of those that come first
    return torch.zeros_like(order_BE, dtype=torch.bool).scatter(-1, order_BE, ~(before_BE >= p))
