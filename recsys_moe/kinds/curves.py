"""Exact AUC and calibration error. Axes: N rows, U users."""

from __future__ import annotations

import math

import numpy as np
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


def auc_per_user(user_N: Tensor, score_N: Tensor, label_N: Tensor, users: int) -> Tensor:
    """Exact AUC of each user's rows, ties counted half; NaN for users of one class. (users,)

    As `exact_auc`, in integers, for all users at once.
    """
    order = np.lexsort((score_N.numpy(), user_N.numpy()))
    user_N, score_N = user_N[order], score_N[order]
    positive_N = (label_N[order] == 1).long()
    is_new_N = torch.ones(len(user_N), dtype=torch.bool)
    is_new_N[1:] = (user_N.diff() != 0) | (score_N.diff() != 0)
    group_N = is_new_N.cumsum(0) - 1
    groups = int(is_new_N.sum())
    positives_G = torch.zeros(groups, dtype=torch.long).index_add_(0, group_N, positive_N)
    negatives_G = torch.zeros(groups, dtype=torch.long).index_add_(0, group_N, 1 - positive_N)
    user_G = user_N[is_new_N].long()
    zeros_U = torch.zeros(users, dtype=torch.long)
    positives_U = zeros_U.index_add(0, user_G, positives_G)
    negatives_U = zeros_U.index_add(0, user_G, negatives_G)
    before_U = negatives_U.cumsum(0) - negatives_U  # of all users before this one
    below_G = negatives_G.cumsum(0) - negatives_G - before_U[user_G]
    twice_won_U = zeros_U.index_add(0, user_G, positives_G * (2 * below_G + negatives_G))
    return twice_won_U / (2 * positives_U * negatives_U).double()  # 0 / 0 is NaN


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


def concordance(scores_N: Tensor, labels_N: Tensor) -> float | None:
    """Share of pairs with different labels whose scores are in the same order; ties count half.

    Harrell et al. 1982, "Evaluating the yield of medical tests". None where all labels are equal.
    By Kendall's tau-b, whose numerator is the same, in N log(N).
    """
    from scipy.stats import kendalltau

    different, untied = _unequal_pairs(labels_N), _unequal_pairs(scores_N)
    if not different:
        return None
    if not untied:
        return 0.5
    columns = (one.detach().cpu().double().numpy() for one in (scores_N, labels_N))
    tau = kendalltau(*columns).statistic
    return (float(tau) * math.sqrt(untied / different) + 1) / 2


def _unequal_pairs(value_N: Tensor) -> int:
    counts = torch.unique(value_N, return_counts=True)[1]
    return math.comb(len(value_N), 2) - int((counts * (counts - 1) // 2).sum())
