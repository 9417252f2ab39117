"""Raw ids <-> dense indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from recsys_moe.errors import DataError
from recsys_moe.schema import Feature

Ids: TypeAlias = Sequence[str | int] | pa.Array


class Vocabulary:
    """Raw ids -> dense indices; ids that training has not seen -> `feature.size`."""

    def __init__(self, feature: Feature, ids: pa.ChunkedArray) -> None:
        self.feature = feature
        self.ids = ids.combine_chunks()
        self._keys = self.ids.cast(pa.string())
        self._table: dict[str, int] = {}

    def index(self, raw: Ids) -> tuple[Tensor, Tensor]:
        """Indices (N,) int64 and which of the ids are unseen. Ids compare as text: 7 is "7"."""
        _check_is_list(raw)
        if self._table and not isinstance(raw, pa.Array | pa.ChunkedArray):
            known = (self._table.get(str(value), self.feature.size) for value in raw)
            index = torch.tensor([*known], dtype=torch.long)
        else:
            place = pc.index_in(_text_array(raw), value_set=self._keys)
            index = torch.tensor(place.fill_null(self.feature.size).to_numpy(zero_copy_only=False))
        return index.long(), index == self.feature.size

    def warm_up(self) -> None:
        """Keep a hash table: short lists of ids are then looked up 100 times faster."""
        self._table = {key: index for index, key in enumerate(self._keys.to_pylist())}


def _check_is_list(raw: Ids) -> None:
    if isinstance(raw, str):
        raise TypeError(f"expected a list of ids, got the single id {raw!r}; pass [{raw!r}]")


def _text_array(ids: Ids) -> pa.Array:
    if isinstance(ids, pa.Array | pa.ChunkedArray):
        return ids.cast(pa.string())
    try:
        return pa.array([str(value) for value in ids], pa.string())
    except UnicodeEncodeError as error:
        raise DataError(f"ids must be text in UTF-8, got {error.object!r}") from None
