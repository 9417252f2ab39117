"""Sinkhorn's algorithm in log space (Sinkhorn and Knopp 1967). Axes: R rows, C columns."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinkhorn(logits_RC: Tensor, rounds: int, column_sum: float = 1.0) -> Tensor:
    """Logarithm of exp(logits) scaled to row sums 1 and column sums `column_sum`, (R, C).

    Each round scales the rows and then the columns, so only the columns are exact afterwards.
    Log space: with a small temperature the logits span far more than exp can hold.
    """
    log_sum = math.log(column_sum)
    for _ in range(rounds):
        logits_RC = logits_RC - torch.logsumexp(logits_RC, dim=1, keepdim=True)
        logits_RC = logits_RC - torch.logsumexp(logits_RC, dim=0, keepdim=True) + log_sum
    return logits_RC
