"""Which experts decided: the leave-one-out contribution of each chosen expert to a logit.

Axes: B pairs, T tasks, E experts, D input width, H expert width, P chosen (pair, expert).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recsys_moe.model.experts import Experts
from recsys_moe.model.moe import MoE
from recsys_moe.routers.joint import route


@dataclass(frozen=True)
class ExpertShare:
    """One chosen expert of a pair and task."""

    expert: int
    weight: float
    """Its routing weight."""
    contribution: float
    """The task's logit minus the logit without this expert, the other weights unchanged; of several
    logits the one that changes most."""


Explanation = list[list[list[ExpertShare]]]
"""Per task and pair the shares, largest absolute contribution first."""


@torch.inference_mode()
def expert_shares(
    x_BD: Tensor, user_B: Tensor, moe: MoE, *, towers: Iterable[nn.Module], scale_T: Iterable[float]
) -> Explanation:
    """Leave each chosen expert out of each mixture in turn and see how the logit changes.

    Exact, one tower pass per chosen pair. Towers are not linear, so the contributions of a pair
    need not sum to its logit. `scale_T`: logits per output of each tower.
    """
    explanation = []
    routings = route(moe.routers, x_BD, user_B)
    for routing, tower, scale in zip(routings, towers, scale_T, strict=True):
        row_P, expert_P = routing.selected_BE.nonzero(as_tuple=True)
        weight_P = routing.weights_BE[row_P, expert_P]
        part_PH = weight_P[:, None] * _hidden(moe.experts, x_BD, row_P, expert_P)
        mixed_BH = part_PH.new_zeros(len(x_BD), part_PH.shape[-1]).index_add_(0, row_P, part_PH)
        if moe.output_means is not None:
            mixed_BH = moe.output_means(mixed_BH[:, None], [routing])[:, 0]
        change_PO = tower(mixed_BH)[row_P] - tower(mixed_BH[row_P] - part_PH)
        change_P = change_PO.gather(1, change_PO.abs().argmax(1, keepdim=True))[:, 0]
        explanation.append(_grouped(len(x_BD), row_P, (expert_P, weight_P, scale * change_P)))
    return explanation


def _hidden(experts: Experts, x_BD: Tensor, row_P: Tensor, expert_P: Tensor) -> Tensor:
    """relu(x W_e + b_e) of the chosen pairs, (P, H)."""
    hidden_PH = x_BD.new_empty(len(row_P), experts.kernel_EDH.shape[-1])
    for expert in expert_P.unique().tolist():
        place = (expert_P == expert).nonzero()[:, 0]
        x_PD = x_BD[row_P[place]]
        hidden_PH[place] = torch.addmm(experts.bias_EH[expert], x_PD, experts.kernel_EDH[expert])
    return hidden_PH.relu_()


def _grouped(
    rows: int, row_P: Tensor, fields: tuple[Tensor, Tensor, Tensor]
) -> list[list[ExpertShare]]:
    """The shares of each row; `fields` (P,) are those of ExpertShare."""
    shares: list[list[ExpertShare]] = [[] for _ in range(rows)]
    columns = (field_P.tolist() for field_P in fields)
    for row, *values in zip(row_P.tolist(), *columns, strict=True):
        shares[row].append(ExpertShare(*values))
    return [sorted(row, key=lambda share: -abs(share.contribution)) for row in shares]
