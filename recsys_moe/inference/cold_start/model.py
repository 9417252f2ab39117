"""A model for one request, in which cold-start user number i has the index ~i.

`MultiTaskMoE` reads such an index as an id that is hidden: the OOV row, to which the vector of
what is told of the cold-start user is added. Axes: U cold-start users, P entries, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from recsys_moe.inference.cold_start.features import Entries
from recsys_moe.model.encoders import Encoders
from recsys_moe.model.network import MultiTaskMoE


class Parts(NamedTuple):
    """What is added to the row of an id."""

    features: Entries
    """Rows and weights of the table of features."""
    history: Tensor
    """Rows (P,) of the table of histories, each over sqrt(P)."""


class ColdStartVectors(Encoders):
    """What is added to the row of the OOV id for the cold-start users of one request."""

    def __init__(
        self,
        users_UD: Tensor,
        items_UD: Tensor,
        parts: Mapping[str, Sequence[Parts]],
        seen: Sequence[Tensor],
    ) -> None:
        """`parts`: of what the vectors are made, by entity; `seen`: of each user the indices of the
        items in its history."""
        super().__init__()
        self.items_UD, self.parts = items_UD, parts
        nobody = users_UD.new_zeros(1, users_UD.shape[1])
        self._users_UD, self._items_UD = (torch.cat([nobody, x]) for x in (users_UD, items_UD))
        self.seen = seen

    def forward(self, user_B: Tensor, item_B: Tensor) -> tuple[Tensor, Tensor]:
        """ColdUser i is ~i; nothing is added to those that are known. (B, D)"""
        return _rows(self._users_UD, user_B), _rows(self._items_UD, item_B)


def _rows(table_UD: Tensor, index_B: Tensor) -> Tensor:
    return F.embedding((-index_B.long()).clamp(min=0), table_UD)


def with_cold_users(model: MultiTaskMoE, told: Encoders | None) -> MultiTaskMoE:
    """The same model, in which the cold-start users have the indices ~0, ~1, ...; parts are
    shared."""
    if told is None:
        return model
    result = copy.copy(model)
    result._modules = {**model._modules}  # which a shallow copy shares
    result.encoders = told
    return result
