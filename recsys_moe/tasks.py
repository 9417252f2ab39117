"""Task kinds: what each means for the loss, the output and the choice of the best model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from recsys_moe.schema import TaskKind


@dataclass(frozen=True)
class Kind:
    """Loss per row from logits and labels, link from logits to predictions, headline metric."""

    row_loss: Callable[[Tensor, Tensor], Tensor]
    link: Callable[[Tensor], Tensor]
    metric: str
    direction: Literal["max", "min"]


def _binary_loss(logits: Tensor, labels: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def _squared_error(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits - labels).square()


def _identity(logits: Tensor) -> Tensor:
    return logits


KINDS: dict[TaskKind, Kind] = {
    "binary": Kind(_binary_loss, torch.sigmoid, "auc", "max"),
    "regression": Kind(_squared_error, _identity, "mse", "min"),
}


def row_losses(kind: TaskKind, logits_B: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each row, 0 where the label is missing (NaN), and the mask of labelled rows.

    The label is replaced before the loss is taken: a NaN multiplied by a zero mask afterwards
    would still reach the gradient.
    """
    mask_B = ~labels_B.isnan()
    filled_B = torch.where(mask_B, labels_B, torch.zeros_like(labels_B))
    losses_B = KINDS[kind].row_loss(logits_B, filled_B)
    return torch.where(mask_B, losses_B, torch.zeros_like(losses_B)), mask_B


def mean_loss(kind: TaskKind, logits_B: Tensor, labels_B: Tensor) -> Tensor:
    """Mean loss over the labelled rows of the batch; 0, with a gradient of 0, if there are none."""
    losses_B, mask_B = row_losses(kind, logits_B, labels_B)
    return losses_B.sum() / mask_B.sum().clamp(min=1)
