"""Losses of tasks over the rows of a step. What a label is: `recsys_moe.kinds`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from recsys_moe.kinds import Kind


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
    user_B: Tensor | None = None
    """Of these rows, for losses that compare rows of a user."""


def step_counts(
    labels_BT: Tensor,
    all_sum: Callable[[Tensor], Tensor] = lambda own: own,
    processes: int = 1,
    *,
    weight_B: Tensor | None = None,
    user_B: Tensor | None = None,
) -> Counts:
    """`labels_BT`: this process' part, NaN where a label is missing; `all_sum` adds up those of
    `processes` processes, in one small call. `weight_B`: >= 0; `user_B`: indices."""
    mask_BT = ~labels_BT.isnan()
    labelled_T = mask_BT.sum(0) if weight_B is None else (mask_BT * weight_B[:, None]).sum(0)
    counts = all_sum(torch.cat([labelled_T, labelled_T.new_full((1,), len(labels_BT))]))
    counts = counts.masked_fill(counts == 0, 1) / processes  # where none is, the sum is 0 too
    return Counts(counts[:-1], counts[-1], weight_B, user_B)


def row_losses(kind: Kind, logits_B: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each row, 0 where the label is missing (NaN), and the mask of labelled rows."""
    return kind.row_losses(logits_B, labels_B), ~labels_B.isnan()


def mean_loss(
    kind: Kind,
    logits_B: Tensor,
    labels_B: Tensor,
    count: Tensor | None = None,
    *,
    weight_B: Tensor | None = None,
    user_B: Tensor | None = None,
) -> Tensor:
    """Mean loss over the labelled rows of the batch; 0, with a gradient of 0, if there are none.

    `count`, a scalar above 0: what to divide the sum by instead of this batch's labelled rows.
    `weight_B` multiplies the loss of each row; `count` is then the sum of the weights. `user_B`,
    the users of the rows, is for losses that compare rows.
    """
    losses_B = kind.row_losses(logits_B, labels_B, user_B=user_B, weight_B=weight_B)
    losses_B = losses_B if weight_B is None else losses_B * weight_B
    return losses_B.sum() / ((~labels_B.isnan()).sum().clamp(min=1) if count is None else count)


def mean_disagreement(
    kind: Kind,
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
    rows_B = kind.disagreement(first_B, second_B)
    rows_B = rows_B if weight_B is None else rows_B * weight_B
    total = torch.where(mask_B, rows_B, torch.zeros_like(rows_B)).sum()
    return total / (mask_B.sum().clamp(min=1) if count is None else count)
