"""Loss-free balancing: a bias per expert, moved after every step, evens out the loads.

Wang et al. 2024, https://arxiv.org/abs/2408.15664; with sigmoid scores and weights that sum to 1 as
in DeepSeek-V3, 2024, https://arxiv.org/abs/2412.19437, section 2.1.2. Axes: B batch, E
experts, D input width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from recsys_moe.routers.base import AllSum, RouterShape, Routing, SparseGatedRouter
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.replay import count_once
from recsys_moe.routers.selection import largest_k, softmax_over
from recsys_moe.routers.settings import KConfig


class LossFreeRouter(SparseGatedRouter):
    """Choose the k largest s + c of s = sigmoid(Ax + b), weigh by s normalised over the chosen.

    The balancing bias c (`balance_E`, the paper's b) chooses and does not weigh; it starts at 0
    and has no gradient. After each training step c += bias_rate * (d - mean d) with
    d = sign(mean load - load), the loads being those of all processes. The signs are centred, and
    not c: their mean is a fraction of n, so that c does not drift; no choice can see it.

    The gradient reaches the chosen logits only; with k = 1 it is identically zero. `probs_BE` is s
    divided by its sum, the softmax of log s.
    """

    class Config(KConfig):
        name: str = "loss_free"
        bias_rate: float = Field(default=1e-3, ge=0, allow_inf_nan=False)
        """How far a step moves the balancing bias, in units of the scores 0..1; 0: no balancing."""

        @property
        def remarks(self) -> list[str]:
            if self.k > 1:
                return []
            return [
                "model.router.k is 1: the loss_free router gets no gradient from the tasks, its "
                "only weight is 1; use k=2, or vmoe or smoe, which learn with k=1"
            ]

    summary = "top-k of sigmoid scores plus a bias that evens out the loads (DeepSeek-V3)"

    balance_E: Tensor
    """float32; what is added to the scores to choose."""

    def __init__(self, config: Config, shape: RouterShape) -> None:
        super().__init__(config, shape)
        self.register_buffer("balance_E", torch.zeros(shape.num_experts))
        self._load_E: Tensor | None = None  # rows of this process since the last `on_step_end`

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        logits_BE = gate_logits(self.gate, x_BD)
        log_scores_BE = F.logsigmoid(logits_BE)  # s may underflow to 0, and 0 / 0 is NaN
        scores_BE = logits_BE.detach().sigmoid()
        selected_BE = largest_k(scores_BE + self.balance_E, self.config.k)
        if self.training:
            self._load_E = count_once(self._load_E, selected_BE.sum(0))
        weights_BE = softmax_over(log_scores_BE, selected_BE)
        return Routing(weights_BE, selected_BE, log_scores_BE.softmax(-1), log_scores_BE)

    def on_step_end(self, all_sum: AllSum) -> None:
        own_E, self._load_E = self._load_E, None
        load_E = all_sum(torch.zeros_like(self.balance_E).long() if own_E is None else own_E)
        self.balance_E.add_(self.config.bias_rate * balancing_step(load_E))


def balancing_step(load_E: Tensor) -> Tensor:
    """sign(mean load - load) less its mean over the experts, float32 (E,): it sums to 0."""
    # n load < total and not load < mean: whole numbers, equal on every device
    direction_E = (load_E.sum() - len(load_E) * load_E).sign().float()
    return direction_E - direction_E.mean()
