"""Averages of users and items: what baselines are made of.

Axes: N rows, U users and I items, both with one more for the OOV id.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from recsys_moe.kinds.judging import LabelledRows

DAMPING = 5
"""Rows with the mean label that are added to those of every user and item."""


def user_item_means(
    train: LabelledRows, sizes: tuple[int, int], mean: float
) -> tuple[Tensor, Tensor]:
    """What users (U,) and items (I,) deviate from `mean`, on damped average: first the items."""
    item_I = _damped(((row.item, row.label - mean) for row in train()), sizes[1])
    left = ((row.user, row.label - mean - item_I[row.item]) for row in train())
    return _damped(left, sizes[0]), item_I


def user_item_factors(
    train: LabelledRows, sizes: tuple[int, int], mean: float
) -> tuple[Tensor, Tensor]:
    """What users (U,) and items (I,) have times `mean`, above 0, damped: first the items."""
    ones_U = torch.ones(sizes[0]).double()
    item_I = _factors(((row.item, row.label, ones_U[row.user]) for row in train()), sizes[1], mean)
    left = ((row.user, row.label, item_I[row.item]) for row in train())
    return _factors(left, sizes[0], mean), item_I


def _factors(values: Iterator[tuple[Tensor, Tensor, Tensor]], size: int, mean: float) -> Tensor:
    """Sum of the labels of each index over that expected, both with DAMPING times `mean` more."""
    sums, expected = (torch.full((size,), DAMPING * mean).double() for _ in range(2))
    for index_N, label_N, factor_N in values:
        sums += torch.bincount(index_N, label_N, size)
        expected += torch.bincount(index_N, mean * factor_N, size)
    return sums / expected


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
