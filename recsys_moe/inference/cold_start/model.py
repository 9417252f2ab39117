"""A model for one request, in which cold-start user number i has the index ~i.

A model reads a negative index as a hidden id: the OOV embedding plus the vector of the
cold-start user. Axes: U cold-start users, P entries, D width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from recsys_moe.inference.cold_start.features import Entries
from recsys_moe.model.encoders.base import Both, Encoders, Entity
from recsys_moe.model.recommender import Recommender
from recsys_moe.model.request import Request


class Parts(NamedTuple):
    """The entries of a vector, added to the embedding of an id."""

    features: Entries
    """Rows and weights of the table of features."""
    history: Tensor
    """Rows (P,) of the table of histories, each over sqrt(P)."""


class ColdStartVectors(Encoders):
    """What is added to the OOV embedding for the cold-start users and items of one request."""

    def __init__(
        self,
        users_UD: Tensor,
        items_UD: Tensor,
        parts: Mapping[str, Sequence[Parts]],
        seen: Sequence[Tensor],
    ) -> None:
        """`parts`: the entries of the vectors by entity; `seen`: the item indices of each user's
        history."""
        super().__init__()
        self.items_UD, self.parts = items_UD, parts
        nobody = users_UD.new_zeros(1, users_UD.shape[1])
        self._users_UD, self._items_UD = (torch.cat([nobody, x]) for x in (users_UD, items_UD))
        self.seen = seen

    def forward(self, entity: Entity, request: Request) -> Tensor:
        """(B, D); zeros for known ids."""
        if entity == "user":
            return _rows(self._users_UD, request.user)
        return _rows(self._items_UD, request.item)


def _rows(table_UD: Tensor, index_B: Tensor) -> Tensor:
    return F.embedding((-index_B.long()).clamp(min=0), table_UD)


def with_cold_users(model: Recommender, cold: Encoders | None) -> Recommender:
    """A copy that knows the cold-start users ~0, ~1, ...; it shares all parameters."""
    if cold is None:
        return model
    return model.with_parts(encoders=cold if model.encoders is None else Both(cold, model.encoders))
