"""Features: the sum of the embeddings of the features of a user or item.

Axes: B batch, U some entities, N entities and one more for the OOV id, P entries (which row
belongs to which entity, entity after entity), R rows of a table, D width of the embeddings.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recsys_moe.model.encoders.base import Encoder, Entity, shown
from recsys_moe.model.request import Request


class Features(Encoder):
    """Sum of the embeddings of an entity's features: x_i = sum_p weight_p table[row_p]."""

    first_N: Tensor
    row_P: Tensor
    weight_P: Tensor

    def __init__(self, entity: Entity, rows: int, dim: int, *, entities: int) -> None:
        super().__init__(entity)
        self.table_RD = nn.Parameter(torch.zeros(rows, dim))
        # Not saved: a resumed run reads them from the data again.
        self.register_buffer("first_N", torch.zeros(entities + 2, dtype=torch.int64), False)
        self.register_buffer("row_P", torch.zeros(0, dtype=torch.int32), False)
        self.register_buffer("weight_P", torch.zeros(0), False)

    def set_entries(self, first_N: Tensor, row_P: Tensor, weight_P: Tensor) -> None:
        """Entity i has the entries first_N[i]..first_N[i + 1] of `row_P` (int32), `weight_P`."""
        self.first_N, self.row_P, self.weight_P = first_N, row_P, weight_P.to(self.table_RD)

    def cold_start_state(self) -> dict[str, Tensor]:
        """The weights that cold-start users and items need."""
        return {"table_RD": self.table_RD.detach()}

    def forward(self, request: Request) -> Tensor:
        return self.of_entities(shown(request.user if self.entity == "user" else request.item))

    def of_entities(self, index_U: Tensor) -> Tensor:
        entry_P, start_U = entries_of(self.first_N, index_U.long())
        bags = (self.row_P[entry_P], self.table_RD, start_U.int())
        return F.embedding_bag(*bags, mode="sum", per_sample_weights=self.weight_P[entry_P])


def entries_of(first_N: Tensor, index_U: Tensor) -> tuple[Tensor, Tensor]:
    """The entries (P,) of the entities, in order, and where those of each start (U,)."""
    first_U = first_N[index_U]
    count_U = first_N[index_U + 1] - first_U
    start_U = count_U.cumsum(0) - count_U
    shift_P = torch.repeat_interleave(first_U - start_U, count_U)
    return shift_P + torch.arange(len(shift_P), device=shift_P.device), start_U
