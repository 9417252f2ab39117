"""Expert Choice: experts pick examples (Zhou et al. 2022, https://arxiv.org/abs/2202.09368).

Axes: B batch, S examples that compete with each other, E experts, D input width.
"""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor

from recsys_moe.routers.base import GatedRouter, Routing
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.selection import keep_selected, largest_k, picks
from recsys_moe.routers.settings import RouterConfig


class ExpertChoiceRouter(GatedRouter):
    """Each expert keeps the examples of the batch on which its probability is largest.

    G = softmax(Ax + b) per row, and every expert (column) keeps its S * k / E largest entries,
    rounded up, at least 1 and at most S (k is the paper's capacity factor c). The kept entries of
    G are the weights, not renormalised. An example may be picked by no expert (its mixture is the
    zero vector) or by all of them; k is the average.

    Routing depends on the other rows. In training the batch competes, also a short last one. In
    evaluation each run of `eval_group` consecutive rows does, so the results do not depend on the
    evaluation batch size, which the configuration keeps a multiple of `eval_group`. They still
    depend on the order of the rows, ties go to the earlier row, and a remainder competes alone: in
    a batch of one every expert picks the one example, and in a ranking for one user that user's
    items compete with each other.
    """

    class Config(RouterConfig):
        name: str = "expert_choice"
        k: float = 2.0
        """Experts per example on average, > 0 and at most num_experts; need not be whole."""
        eval_group: int = Field(default=512, ge=1)
        """Rows that compete with each other in evaluation."""

        def check(self, num_experts: int) -> None:
            if not 0 < self.k <= num_experts:  # False for nan as well
                raise ValueError(
                    f"model.router.k must be above 0 and at most model.num_experts={num_experts}, "
                    f"got {self.k}; lower k or raise model.num_experts"
                )

        @property
        def idle_penalties(self) -> dict[str, str]:
            return {"switch": "gives every expert the same load already"}

    summary = "every expert picks an equal share of the batch (Expert Choice)"
    sparsity = "k on average"
    batch_dependent = True

    @property
    def kept(self) -> int:
        return math.ceil(self.config.k)

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        logits_BE = gate_logits(self.gate, x_BD)
        probs_BE = logits_BE.softmax(-1)
        rows = max(len(x_BD), 1) if self.training else self.config.eval_group
        groups = [pick_examples(part_SE, self.config.k) for part_SE in probs_BE.split(rows)]
        selected_BE = torch.cat(groups)
        return Routing(keep_selected(probs_BE, selected_BE), selected_BE, probs_BE, logits_BE)


def pick_examples(probs_SE: Tensor, k: float) -> Tensor:
    """bool (S, E): True where the expert (column) picks the example (row), lower rows first."""
    rows, num_experts = probs_SE.shape
    return largest_k(probs_SE.t(), picks(rows, num_experts, k)).t()
