"""Sums of the rows of a table, one for each bag.

Axes: U bags, P entries (rows of bags, bag after bag), R rows of the table, W its width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def bag_sums(
    table_RW: Tensor, row_P: Tensor, start_U: Tensor, weight_P: Tensor | None = None
) -> Tensor:
    """Sums (U, W) of the rows, times their weights, from each start to the next."""
    result: Tensor = _Sums.apply(table_RW, row_P, start_U, weight_P)
    return result


class _Sums(torch.autograd.Function):
    """F.embedding_bag(mode="sum"), whose own backward pass takes seven times as long (torch 2.13 on
    a CPU, bags of hundreds of rows). The gradient of a row is itself a sum: over its bags."""

    @staticmethod
    def forward(
        ctx: Any, table_RW: Tensor, row_P: Tensor, start_U: Tensor, weight_P: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(row_P, start_U, weight_P)
        ctx.rows = len(table_RW)
        start_U = start_U.to(row_P)
        return F.embedding_bag(row_P, table_RW, start_U, mode="sum", per_sample_weights=weight_P)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        row_P, start_U, weight_P = ctx.saved_tensors
        size_U = start_U.diff(append=start_U.new_tensor([len(row_P)]))
        order_P = row_P.argsort(stable=True)  # the same sums in the same order on any device
        bag_P = torch.repeat_interleave(size_U)[order_P]
        size_R = torch.bincount(row_P, minlength=ctx.rows)
        weight_P = None if weight_P is None else weight_P[order_P]
        bags = (bag_P, gradients[0].contiguous(), size_R.cumsum(0) - size_R)
        gradient_RW = F.embedding_bag(*bags, mode="sum", per_sample_weights=weight_P)
        return gradient_RW, None, None, None
