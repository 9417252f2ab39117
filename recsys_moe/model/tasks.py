"""Task kinds: the loss, the link and the headline metric of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from recsys_moe.schema import TaskKind


class Constant(NamedTuple):
    """The best constant logit on the training labels."""

    logit: float
    scale: float
    """Unit of a logit: 1, or the standard deviation of the labels."""
    loss: float
    """Mean loss of `logit`, above 0."""


def _base_rate(counts: Mapping[str, float]) -> Constant:
    """Adds half a row to each class, so that a single class has a finite logit."""
    rate = (counts["positive"] + 0.5) / (counts["labelled"] + 1)
    entropy = -rate * math.log(rate) - (1 - rate) * math.log1p(-rate)
    return Constant(math.log(rate / (1 - rate)), 1.0, entropy)


def _mean(counts: Mapping[str, float]) -> Constant:
    scale = counts["std"] or 1.0
    return Constant(counts["mean"], scale, scale**2)


@dataclass(frozen=True)
class Kind:
    """Loss per row from logits and labels, link from logits to predictions, headline metric.

    `constant`: from the counts of the training labels in schema.json.

    `disagreement` per row between two lists of logits: symmetric, 0 where they are equal.
    """

    row_loss: Callable[[Tensor, Tensor], Tensor]
    disagreement: Callable[[Tensor, Tensor], Tensor]
    link: Callable[[Tensor], Tensor]
    constant: Callable[[Mapping[str, float]], Constant]
    metric: str
    direction: Literal["max", "min"]
    likelihood: float = 1.0
    """Factor of the loss in a negative log-likelihood of unit noise, up to a constant."""


def _binary_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def _squared_error(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits - labels).square()


def _symmetric_kl(first: Tensor, second: Tensor) -> Tensor:
    """(KL(p, q) + KL(q, p)) / 2 of two Bernoulli laws: (p - q) (logit p - logit q) / 2."""
    return (first.sigmoid() - second.sigmoid()) * (first - second) / 2


def _identity(logits: Tensor) -> Tensor:
    return logits


KINDS: dict[TaskKind, Kind] = {
    "binary": Kind(_binary_loss, _symmetric_kl, torch.sigmoid, _base_rate, "auc", "max"),
    "regression": Kind(_squared_error, _squared_error, _identity, _mean, "mse", "min", 0.5),
}


class Counts(NamedTuple):
    """Rows of a training step over all processes, divided by the number of processes.

    Gradients are averaged over processes, so a sum divided by this becomes the mean over all rows
    of the step, however unevenly labels are spread.
    """

    labelled_T: Tensor
    """Rows with a label of each task, or the sum of their weights; above 0."""
    rows: Tensor
    """()"""
    weight_B: Tensor | None = None
    """Of this process' rows; None where each counts once."""


def step_counts(
    labels_BT: Tensor,
    all_sum: Callable[[Tensor], Tensor] = lambda own: own,
    processes: int = 1,
    *,
    weight_B: Tensor | None = None,
) -> Counts:
    """`labels_BT`: this process' part, NaN where a label is missing; `all_sum` adds up those of
    `processes` processes, in one small call. `weight_B`: >= 0."""
    mask_BT = ~labels_BT.isnan()
    labelled_T = mask_BT.sum(0) if weight_B is None else (mask_BT * weight_B[:, None]).sum(0)
    counts = all_sum(torch.cat([labelled_T, labelled_T.new_full((1,), len(labels_BT))]))
    counts = counts.masked_fill(counts == 0, 1) / processes  # where none is, the sum is 0 too
    return Counts(counts[:-1], counts[-1], weight_B)


def row_losses(kind: TaskKind, logits_B: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each row, 0 where the label is missing (NaN), and the mask of labelled rows.

    The label is replaced before the loss is taken: a NaN multiplied by a zero mask afterwards
    would still reach the gradient.
    """
    missing_B = labels_B.isnan()
    losses_B = KINDS[kind].row_loss(logits_B, labels_B.masked_fill(missing_B, 0))
    return losses_B.masked_fill(missing_B, 0), ~missing_B


def mean_loss(
    kind: TaskKind,
    logits_B: Tensor,
    labels_B: Tensor,
    count: Tensor | None = None,
    *,
    weight_B: Tensor | None = None,
) -> Tensor:
    """Mean loss over the labelled rows of the batch; 0, with a gradient of 0, if there are none.

    `count`, a scalar above 0: what to divide the sum by instead of this batch's labelled rows.
    `weight_B` multiplies the loss of each row; `count` is then the sum of the weights.
    """
    losses_B, mask_B = row_losses(kind, logits_B, labels_B)
    losses_B = losses_B if weight_B is None else losses_B * weight_B
    return losses_B.sum() / (mask_B.sum().clamp(min=1) if count is None else count)


def mean_disagreement(
    kind: TaskKind,
    first_B: Tensor,
    second_B: Tensor,
    labels_B: Tensor,
    *,
    count: Tensor | None = None,
    weight_B: Tensor | None = None,
) -> Tensor:
    """Mean over the labelled rows of how far two logits of a row disagree; 0 if there are none.

    `count` and `weight_B` as in `mean_loss`.
    """
    mask_B = ~labels_B.isnan()
    rows_B = KINDS[kind].disagreement(first_B, second_B)
    rows_B = rows_B if weight_B is None else rows_B * weight_B
    total = torch.where(mask_B, rows_B, torch.zeros_like(rows_B)).sum()
    return total / (mask_B.sum().clamp(min=1) if count is None else count)
