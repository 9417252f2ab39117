"""User and item biases: fixed offsets of the logits, fitted before training.

Axes: B batch, N rows, T tasks, U users and I items, both with one more for the OOV id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recsys_moe.kinds import Constant, Kind

SWEEPS = 4
"""Rounds of fitting items, then users, to the residual of the other; more change little."""
SMALLEST = torch.finfo(torch.float64).tiny
"""Replaces an information of 0 in a quotient; any real one is larger, whatever the unit."""


class Biases(nn.Module):
    """logit = shift + scale * x + bias of the user + bias of the item, with x from the towers.

    x is around 0 and of size 1. Biases are buffers: `fit` sets them before training, and the
    experts learn the rest. OOV ids have a bias of 0.
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

    def fit(self, task: int, kind: Kind, rows: Callable[[], Iterator[Rows]]) -> None:
        """Fit the biases of one task to `rows()`, its labelled training rows in chunks.

        Each bias is the posterior mode under a normal prior around 0. The variance of the prior is
        estimated from the rows (empirical Bayes, moments of DerSimonian and Laird 1986), so few
        rows give a bias near 0, many rows nearly their mean, and users that differ no more than
        by chance 0. Each sweep takes one Newton step of at most the scale of the labels.
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


def _derivatives(kind: Kind, rows: Iterator[Rows], size: int) -> tuple[Tensor, Tensor]:
    """Derivatives of the log likelihood by each bias: the first, and minus the second. (size,)

    `rows`: logits, index, labels and weights. The noise, where a kind has one, is that of these
    logits.
    """
    score, information = (torch.zeros(size + 1).double() for _ in range(2))
    squared, count = 0.0, 0.0
    for logits_N, index_N, labels_N, weight_N in rows:
        score_N, information_N = kind.derivatives(logits_N, labels_N)
        score += torch.bincount(index_N, weight_N * score_N, size + 1)
        information += torch.bincount(index_N, weight_N * information_N, size + 1)
        squared += float((weight_N * score_N.square() / information_N.clamp(min=SMALLEST)).sum())
        count += float(weight_N.sum())
    noise = squared / count if kind.has_noise and squared else 1.0
    return score[:size] / noise, information[:size] / noise


def _variance(score: Tensor, information: Tensor) -> Tensor:
    """Variance of the biases: their spread less the spread of chance alone, at least 0."""
    known = information > 0
    spread = (score[known].square() / information[known]).sum() - known.sum()
    return (spread / information.sum().clamp(min=SMALLEST)).clamp(min=0)
