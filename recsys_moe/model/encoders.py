"""Encoders: the features and the item bag of a user or item, added to the embedding of its id.

Each is a sum of rows of a table of its own, so `Encoders.materialize` can store one vector per
known user and item. Tables start at 0: training starts as it does without encoders.

Axes: B batch, U some entities, N entities and one more for the OOV id, P entries (which row
belongs to which entity, entity after entity), R rows of a table, D width of the embeddings.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recsys_moe.model.item_bag import ItemBag, entries_of
from recsys_moe.seeds import stream_seed

MATERIALIZED_AT_ONCE = 1024
"""Entities per part; bags are long."""


class Features(nn.Module):
    """Sum of the embeddings of an entity's features: x_i = sum_p weight_p table[row_p]."""

    first_N: Tensor
    row_P: Tensor
    weight_P: Tensor

    def __init__(self, rows: int, dim: int, entities: int) -> None:
        super().__init__()
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

    def forward(self, index_B: Tensor) -> Tensor:
        """(B,) -> (B, D)."""
        entry_P, start_B = entries_of(self.first_N, index_B.long())
        bags = (self.row_P[entry_P], self.table_RD, start_B.int())
        return F.embedding_bag(*bags, mode="sum", per_sample_weights=self.weight_P[entry_P])


class Encoders(nn.Module):
    """What is added to the embeddings of ids. A part that a model does not use is None."""

    def __init__(
        self,
        users: Features | None = None,
        items: Features | None = None,
        item_bag: ItemBag | None = None,
        user_bag: ItemBag | None = None,
    ) -> None:
        """`item_bag`: anchors are users, neighbours items; `user_bag`: the other way round."""
        super().__init__()
        self.users, self.items = users, items
        self.item_bag, self.user_bag = item_bag, user_bag

    def forward(self, user_B: Tensor, item_B: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """What is added to users and to items: (B, D), or 0. ~i is i with its id hidden."""
        user_B, item_B = (torch.where(i_B < 0, ~i_B, i_B) for i_B in (user_B, item_B))
        of_user = _added(self.users, self.item_bag, user_B, item_B)
        return of_user, _added(self.items, self.user_bag, item_B, user_B)

    @torch.no_grad()
    def materialize(self, users_ND: Tensor, items_ND: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of all users and items, from the embeddings of their ids."""
        users_ND, items_ND = users_ND.clone(), items_ND.clone()
        parts = (users_ND, self.users, self.item_bag), (items_ND, self.items, self.user_bag)
        for table_ND, features, bag in parts:
            entities = torch.arange(len(table_ND), device=table_ND.device)
            for index_U in entities.split(MATERIALIZED_AT_ONCE):
                if features is not None:
                    table_ND[index_U] += features(index_U)
                if bag is not None:
                    table_ND[index_U] += bag.of_anchors(index_U)
        return users_ND, items_ND

    def cold_start_state(self) -> dict[str, Tensor]:
        """The weights that cold-start users and items need, by part and name."""
        parts: dict[str, Any] = dict(self.named_children())
        return {
            f"{n}.{key}": value
            for n, one in parts.items()
            for key, value in one.cold_start_state().items()
        }

    def reseed(self, seed: int) -> None:
        """Give each bag a stream of its own from `seed`. Streams keep the names of version 0.1."""
        for bag, name in ((self.item_bag, "history"), (self.user_bag, "item_history")):
            if bag is not None:
                bag.stream.reseed(stream_seed(seed, name))


def _added(
    features: Features | None, bag: ItemBag | None, index_B: Tensor, neighbour_B: Tensor
) -> Tensor | float:
    added_BD = 0.0 if features is None else features(index_B)
    return added_BD if bag is None else added_BD + bag(index_B, neighbour_B)
