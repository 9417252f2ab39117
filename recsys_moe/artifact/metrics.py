"""Exact metrics over a whole split, fed batch by batch. Axes: B batch."""

from __future__ import annotations

import math
from array import array

import numpy as np
import torch
from torch import Tensor

from recsys_moe.artifact.calibration import ROWS_PER_PART, Calibration
from recsys_moe.model.tasks import KINDS, row_losses
from recsys_moe.schema import TaskKind

CALIBRATION_BINS = 15


class BinaryMetrics:
    """AUC, mean binary cross-entropy (`bce`) and calibration error (`ece`, 15 equal-width bins).

    Keeps the float32 logit and label of each labelled row, because an exact AUC needs all of them:
    it is that of the logits, since from 17 on float32 has only 1 for their probability.
    In arrays that grow in place: a list of tensors would pin a small block of memory behind the
    large ones of every batch, and glibc then finds no place for the next large one.
    `calibration` may also be set when all rows are seen. The labels are 0 and 1.
    """

    names = ("auc", "bce", "ece", "ece_calibrated")
    loss = "bce"

    def __init__(self, calibration: Calibration | None = None) -> None:
        self.calibration = calibration
        self._columns = array("f"), array("f")
        self.loss_sum = 0.0

    def update(self, logits_B: Tensor, labels_B: Tensor) -> None:
        """Add a batch; rows whose label is NaN are left out."""
        losses_B, mask_B = row_losses("binary", logits_B, labels_B)
        self.loss_sum += losses_B.double().sum().item()
        for column, values_B in zip(self._columns, (logits_B, labels_B), strict=True):
            column.frombytes(values_B[mask_B].detach().float().cpu().numpy().tobytes())

    def merge(self, other: BinaryMetrics) -> None:
        """Add the rows of `other`."""
        self.loss_sum += other.loss_sum
        for column, more in zip(self._columns, other._columns, strict=True):
            column.extend(more)

    def rows(self) -> tuple[Tensor, Tensor]:
        """Logits and labels (rows,) so far: views, to be dropped before the next `update`."""
        logits, labels = (torch.from_numpy(np.asarray(column)) for column in self._columns)
        return logits, labels

    def compute(self) -> dict[str, float | int | None]:
        """AUC is None when only one class is present, `ece_calibrated` without a calibration,
        everything when no row is labelled."""
        logits, labels = self.rows()
        scores = KINDS["binary"].link(logits)
        rows, positive = len(labels), int(labels.count_nonzero())  # a float32 counts to 2**24
        return {
            "auc": exact_auc(logits, labels) if 0 < positive < rows else None,
            "bce": self.loss_sum / rows if rows else None,
            "ece": _calibration_error(scores, labels) if rows else None,
            "ece_calibrated": self._error_of_map(logits, labels) if rows else None,
            "rows": rows,
            "positive": positive,
        }

    def _error_of_map(self, logits: Tensor, labels: Tensor) -> float | None:
        """Mapped in parts, which bounds the memory."""
        if self.calibration is None:
            return None
        mapped = map(self.calibration.apply, logits.split(ROWS_PER_PART))
        return _calibration_error(torch.cat([*mapped]), labels)


class RegressionMetrics:
    """MSE, RMSE and MAE over labelled rows, from running float64 sums."""

    names = ("mse", "rmse", "mae")
    loss = "mse"

    def __init__(self) -> None:
        self.squared, self.absolute, self.rows = 0.0, 0.0, 0

    def update(self, logits_B: Tensor, labels_B: Tensor) -> None:
        """Add a batch; rows whose label is NaN are left out."""
        mask_B = ~labels_B.isnan()
        errors = (logits_B[mask_B] - labels_B[mask_B]).double()
        self.squared += errors.square().sum().item()
        self.absolute += errors.abs().sum().item()
        self.rows += len(errors)

    def merge(self, other: RegressionMetrics) -> None:
        """Add the rows of `other`."""
        self.squared += other.squared
        self.absolute += other.absolute
        self.rows += other.rows

    def compute(self) -> dict[str, float | int | None]:
        """Every metric is None when no row is labelled."""
        mse = self.squared / self.rows if self.rows else None
        return {
            "mse": mse,
            "rmse": None if mse is None else math.sqrt(mse),
            "mae": self.absolute / self.rows if self.rows else None,
            "rows": self.rows,
        }


TaskMetrics = BinaryMetrics | RegressionMetrics
METRICS: dict[TaskKind, type[TaskMetrics]] = {
    "binary": BinaryMetrics,
    "regression": RegressionMetrics,
}
"""By kind; of its `names`, `loss` is the one that is its loss averaged over all labelled rows."""


def exact_auc(scores: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve, ties counted half, in integer arithmetic. Both classes needed.

    The probability that a positive outscores a negative (Mann and Whitney 1947). Our own because
    torchmetrics 1.9 adds up trapezoids in float32, which is off by 1e-7 on a million rows.
    """
    values, group = torch.unique(scores, return_inverse=True)
    positives = torch.bincount(group[labels == 1], minlength=len(values))
    negatives = torch.bincount(group[labels == 0], minlength=len(values))
    below = negatives.cumsum(0) - negatives
    twice_won = (positives * (2 * below + negatives)).sum()
    return int(twice_won) / (2 * int(positives.sum()) * int(negatives.sum()))


def _calibration_error(scores: Tensor, labels: Tensor) -> float:
    """Mean over rows of |mean score - share of positives| of the row's bin.

    A score on a border belongs to the upper bin, 1 to the last one (Guo et al. 2017, "On
    calibration of modern neural networks"). Our own because torchmetrics 1.9 puts the rows with a
    score of exactly 1 into a bin of their own, and sums in the type of the scores.
    """
    borders = torch.linspace(0, 1, CALIBRATION_BINS + 1, dtype=torch.float64)
    bin_N = torch.bucketize(scores.double(), borders, right=True) - 1
    bin_N = bin_N.clamp(max=CALIBRATION_BINS - 1)
    rows, predicted, observed = (
        torch.bincount(bin_N, weights.double(), len(borders))
        for weights in (torch.ones_like(scores), scores, labels)
    )
    gaps = (observed / rows - predicted / rows).abs() * (rows / len(scores))
    return float(gaps.nan_to_num().sum())


class RoutingMetrics:
    """Where a task's router sends examples: experts per example and each expert's load."""

    def __init__(self) -> None:
        self.visits: Tensor | int = 0
        self.rows = 0

    def update(self, selected_BE: Tensor) -> None:
        self.visits = self.visits + selected_BE.sum(0).cpu()
        self.rows += len(selected_BE)

    def merge(self, other: RoutingMetrics) -> None:
        """Add the rows of `other`."""
        self.visits = self.visits + other.visits
        self.rows += other.rows

    def compute(self) -> dict[str, float | list[float]]:
        """`load`: share of all visits that each expert received; it sums to 1."""
        visits = torch.as_tensor(self.visits).double()
        total = visits.sum().clamp(min=1)
        return {
            "experts_per_example": float(visits.sum() / max(self.rows, 1)),
            "load": (visits / total).tolist(),
        }
