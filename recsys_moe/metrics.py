"""Exact metrics over a whole split, fed batch by batch. Axes: B batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torchmetrics.functional.classification import binary_calibration_error

from recsys_moe.calibration import Calibration
from recsys_moe.schema import TaskKind
from recsys_moe.tasks import KINDS, row_losses

CALIBRATION_BINS = 15


class BinaryMetrics:
    """AUC, mean binary cross-entropy (`bce`) and calibration error (`ece`, 15 equal-width bins).

    Keeps float32 columns, the predicted probability, raw and (with `calibration`) calibrated, and
    the label of each labelled row, because an exact AUC needs all scores.
    """

    names = ("auc", "bce", "ece", "ece_calibrated")

    def __init__(self, calibration: Calibration | None = None) -> None:
        self.calibration = calibration
        self.scores: list[Tensor] = []
        self.calibrated: list[Tensor] = []
        self.labels: list[Tensor] = []
        self.loss_sum = 0.0

    def update(self, logits_B: Tensor, labels_B: Tensor) -> None:
        """Add a batch; rows whose label is NaN are left out."""
        losses_B, mask_B = row_losses("binary", logits_B, labels_B)
        self.loss_sum += losses_B.double().sum().item()
        self.scores.append(KINDS["binary"].link(logits_B[mask_B]).cpu())
        self.labels.append(labels_B[mask_B].cpu())
        if self.calibration is not None:
            self.calibrated.append(self.calibration.apply(logits_B[mask_B]).cpu())

    def merge(self, other: BinaryMetrics) -> None:
        """Add the rows of `other`."""
        self.loss_sum += other.loss_sum
        self.scores += other.scores
        self.calibrated += other.calibrated
        self.labels += other.labels

    def compute(self) -> dict[str, float | int | None]:
        """AUC is None when only one class is present, `ece_calibrated` without a calibration,
        everything when no row is labelled."""
        labels, scores = torch.cat(self.labels), torch.cat(self.scores)
        rows, positive = len(labels), int(labels.sum())
        return {
            "auc": exact_auc(scores, labels) if 0 < positive < rows else None,
            "bce": self.loss_sum / rows if rows else None,
            "ece": _calibration_error(scores, labels) if rows else None,
            "ece_calibrated": (
                _calibration_error(torch.cat(self.calibrated), labels)
                if rows and self.calibrated
                else None
            ),
            "rows": rows,
            "positive": positive,
        }


class RegressionMetrics:
    """MSE, RMSE and MAE over labelled rows, from running float64 sums."""

    names = ("mse", "rmse", "mae")

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
LOSS_KEY: dict[TaskKind, str] = {"binary": "bce", "regression": "mse"}
"""Which metric of a kind is its loss averaged over all labelled rows."""


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
    # double: the sums per bin are taken in the type of the scores.
    scores, classes = scores.double(), labels.long()
    return float(binary_calibration_error(scores, classes, CALIBRATION_BINS, validate_args=False))


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
