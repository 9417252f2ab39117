"""Exact AUC and calibration error. Axes: N rows."""

from __future__ import annotations

import torch
from torch import Tensor

CALIBRATION_BINS = 15
ROWS_PER_PART = 1 << 16
"""Rows that are calibrated at a time, each with a number per segment; bounds the memory."""


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


def calibration_error(scores: Tensor, labels: Tensor) -> float:
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
