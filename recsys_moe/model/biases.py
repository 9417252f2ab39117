"""user and item biases: what user and item say apart, before anything is learned about them
together.

Axes: B batch, N rows, T tasks, U users and I items, both with one more for the OOV id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recsys_moe.model.tasks import KINDS, Constant
from recsys_moe.schema import TaskKind

SWEEPS = 4
"""Times that items and then users are fitted to what the others leave; more change little."""
SMALLEST = torch.finfo(torch.float64).tiny
"""Instead of 0 where nothing is known; a unit of labels may make anything above it small."""


class Biases(nn.Module):
    """From what the towers learn, around 0 and of size 1, to logits.

    logit = shift + scale * x + effect of the user + effect of the item. Buffers, set before
    training and fixed, so that experts learn what is left; 0 for OOV ids.
    """

    shift_T: Tensor
    scale_T: Tensor
    user_UT: Tensor
    item_IT: Tensor

    def __init__(self, num_users: int, num_items: int, constants: Sequence[Constant]) -> None:
        super().__init__()
        self.register_buffer("shift_T", torch.tensor([c.logit for c in constants]))
        self.register_buffer("scale_T", torch.tensor([c.scale for c in constants]))
        self.register_buffer("user_UT", torch.zeros(num_users + 1, len(constants)))
        self.register_buffer("item_IT", torch.zeros(num_items + 1, len(constants)))

    def forward(self, x_BT: Tensor, user_B: Tensor, item_B: Tensor) -> Tensor:
        alone_BT = F.embedding(user_B, self.user_UT) + F.embedding(item_B, self.item_IT)
        return torch.addcmul(alone_BT + self.shift_T, x_BT, self.scale_T)

    def of_task(self, x_B: Tensor, user_B: Tensor, item_B: Tensor, task: int) -> Tensor:
        """Logits (B,) of one task; as `forward` within rounding."""
        alone_B = self.user_UT[user_B, task] + self.item_IT[item_B, task]
        return torch.addcmul(alone_B + self.shift_T[task], x_B, self.scale_T[task])

    def fit(self, task: int, kind: TaskKind, rows: Callable[[], Iterator[Rows]]) -> None:
        """Set the effects of one task from `rows()`, its labelled training rows in chunks.

        Each effect is the most probable one if effects were normal around 0 with a variance that
        the rows show (empirical Bayes, by the moments of DerSimonian and Laird 1986): hardly
        anything of few rows, nearly their mean of many, 0 where users do not differ more than
        chance has it. One step of Newton a sweep, of at most the scale of the labels.
        """
        tables = {0: self.user_UT[:, task].double(), 1: self.item_IT[:, task].double()}
        shift, scale = float(self.shift_T[task]), float(self.scale_T[task])
        variances: dict[int, Tensor] = {}
        for side in (1, 0) * SWEEPS:
            size = len(tables[side]) - 1
            logits = (
                (shift + tables[0][u] + tables[1][i], (u, i)[side], y, w) for u, i, y, w in rows()
            )
            score, information = _derivatives(kind, logits, size)
            variance = variances.setdefault(side, _variance(score, information))
            own = tables[side][:size]  # not of the OOV id
            step = (variance * score - own) / (variance * information + 1)
            own += step.clamp(-scale, scale)
        self.user_UT[:, task], self.item_IT[:, task] = tables[0], tables[1]


Rows = tuple[Tensor, Tensor, Tensor, Tensor]
"""User and item (N,) int64, label and weight (N,) float64."""


def _derivatives(kind: TaskKind, rows: Iterator[Rows], size: int) -> tuple[Tensor, Tensor]:
    """Of the log likelihood by the effect of each index: the first, and minus the second. (size,)

    `rows`: logits, index, labels and weights. The noise of a regression is that of these logits.
    """
    score, information = (torch.zeros(size + 1).double() for _ in range(2))
    squared, count = 0.0, 0.0
    for logits_N, index_N, labels_N, weight_N in rows:
        expected_N = KINDS[kind].link(logits_N)
        residual_N = labels_N - expected_N
        per_row_N = weight_N * (expected_N * (1 - expected_N) if kind == "binary" else 1)
        score += torch.bincount(index_N, weight_N * residual_N, size + 1)
        information += torch.bincount(index_N, per_row_N, size + 1)
        squared += float((weight_N * residual_N.square()).sum())
        count += float(weight_N.sum())
    noise = 1.0 if kind == "binary" or not squared else squared / count
    return score[:size] / noise, information[:size] / noise


def _variance(score: Tensor, information: Tensor) -> Tensor:
    """Of effects: what their spread has beyond the one that chance alone would give, at least 0."""
    known = information > 0
    spread = (score[known].square() / information[known]).sum() - known.sum()
    return (spread / information.sum().clamp(min=SMALLEST)).clamp(min=0)
