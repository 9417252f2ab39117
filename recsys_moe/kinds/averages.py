"""Averages of users and items: what baselines are made of.

Axes: N rows, U users and I items, both with one more for the OOV id.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from recsys_moe.kinds.base import LabelledRows

DAMPING = 5
"""Rows with the mean label that are added to those of every user and item."""


def user_item_means(
    train: LabelledRows, sizes: tuple[int, int], mean: float
) -> tuple[Tensor, Tensor]:
    """What users (U,) and items (I,) deviate from `mean`, on damped average: first the items."""
    item_I = _damped(((row.item, row.label - mean) for row in train()), sizes[1])
    left = ((row.user, row.label - mean - item_I[row.item]) for row in train())
    return _damped(left, sizes[0]), item_I


def _damped(values: Iterator[tuple[Tensor, Tensor]], size: int) -> Tensor:
    """Mean value of each index, damped by DAMPING zeros."""
    sums, counts = torch.zeros(size).double(), torch.full((size,), float(DAMPING)).double()
    for index_N, value_N in values:
        sums += torch.bincount(index_N, value_N, size)
        counts += torch.bincount(index_N, minlength=size)
    return sums / counts


def totals(values: Iterator[tuple[Tensor, Tensor]], size: int) -> Tensor:
    """Sum of the values of each index. float64"""
    return sum((torch.bincount(*value, size) for value in values), torch.zeros(size).double())
