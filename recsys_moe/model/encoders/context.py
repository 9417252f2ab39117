"""Context: the sum of the embeddings of a row's context features, added to the user's vector.

Axes: B batch, C context features, R rows of the table, D width of the embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recsys_moe.model.encoders.base import Encoder
from recsys_moe.model.request import Request


class Context(Encoder):
    """x = sum_c weight_c table[row_c] over the features that are not missing.

    A category has a row and the weight 1, a number one row, and its value as the weight. The last
    row of a category is that of unknown ones, which has no training row: it stays 0.
    """

    is_static: ClassVar[bool] = False
    first_C: Tensor
    is_number_C: Tensor

    def __init__(self, sizes: Sequence[int | None], dim: int) -> None:
        """`sizes`: known categories of each feature; None: a number."""
        super().__init__("user")
        *first, rows = accumulate((1 if n is None else n + 1 for n in sizes), initial=0)
        self.table_RD = nn.Parameter(torch.zeros(rows, dim))
        # Not saved: they follow from the schema.
        self.register_buffer("first_C", torch.tensor(first), False)
        self.register_buffer("is_number_C", torch.tensor([n is None for n in sizes]), False)

    def forward(self, request: Request) -> Tensor:
        if request.context is None:
            return self.table_RD.new_zeros(len(request.user), self.table_RD.shape[1])
        known_BC = ~request.context.isnan()
        value_BC = request.context.nan_to_num(0.0)
        row_BC = self.first_C + torch.where(self.is_number_C, 0, value_BC.long())
        weight_BC = torch.where(self.is_number_C, value_BC, 1.0) * known_BC
        added_BCD = F.embedding(row_BC, self.table_RD)
        return (added_BCD * weight_BC.to(added_BCD)[..., None]).sum(1)
