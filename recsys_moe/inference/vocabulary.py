"""Raw ids <-> dense indices, by the one rule of docs/how-to/prepare-data.md for what an id is."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from recsys_moe import raw_ids
from recsys_moe.errors import DataError
from recsys_moe.inference.plain import plain, plain_ids, shown
from recsys_moe.schema import Feature

logger = logging.getLogger("recsys_moe.inference")

Ids: TypeAlias = Sequence[str | int | float] | pa.Array
LEAST_ROWS, MOST_UNSEEN = 10, 0.9
"""From so many rows on, a larger share of unseen ids than this is likely to be a mistake."""


class NoId(DataError):
    """A value is not an id. Rows count from 1."""

    def __init__(self, row: int, value: object, place: str) -> None:
        rule = "an id must be text or a whole number"
        super().__init__(f"row {row} has no id{place}: {rule}, got {shown(value)}")


def id_texts(ids: Ids, place: str = "", rows_before: int = 0) -> list[str] | pa.Array:
    """The texts of all ids; those of an Arrow array as an array.

    Raises NoId for the first that is none, with its row and `place`, and TypeError for one id
    where a list belongs.
    """
    if isinstance(ids, str):
        raise TypeError(f"expected a list of ids, got the single id {ids!r}; pass [{ids!r}]")
    if isinstance(ids, pa.Array | pa.ChunkedArray):
        found = raw_ids.of_column(ids).texts
        if found.null_count:
            row = pc.index(found.is_null(), True).as_py()
            raise NoId(rows_before + row + 1, ids[row].as_py(), place)
        return found
    texts = []
    # NumPy, pandas and torch turn themselves into a list.
    for row, value in enumerate(ids.tolist() if hasattr(ids, "tolist") else ids, rows_before + 1):
        if (text := raw_ids.of_value(value)) is None:
            raise NoId(row, value, place)
        texts.append(text)
    return texts


def checked_ids(ids: Ids, place: str = "", rows_before: int = 0) -> list[str] | pa.Array:
    """`id_texts`, but of integers in Arrow the integers: all are ids, and found faster so."""
    return _one_chunk(ids) if _are_whole(ids) else id_texts(ids, place, rows_before)


def _are_whole(ids: Any) -> bool:
    """Are these an Arrow array of integers that int64 holds, none missing?"""
    is_arrow = isinstance(ids, pa.Array | pa.ChunkedArray)
    return is_arrow and pa.types.is_signed_integer(ids.type) and not ids.null_count


def _one_chunk(ids: pa.Array | pa.ChunkedArray) -> pa.Array:
    return ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids


def _as_int64(ids: pa.Array) -> Tensor:
    return torch.tensor(ids.cast(pa.int64()).to_numpy())


class Vocabulary:
    """Raw ids -> dense indices; unknown ids -> `feature.size`."""

    def __init__(self, feature: Feature, ids: pa.ChunkedArray) -> None:
        self.feature = feature
        self.ids = ids.combine_chunks()
        self._keys = raw_ids.plain(self.ids.cast(pa.string()))
        self._table: dict[str, int] = {}
        self._numbers = pa.types.is_integer(self.ids.type)
        self._sorted: tuple[Tensor, Tensor] | None = None
        self._has_looked = self._has_warned = False

    def index(self, raw: Ids) -> tuple[Tensor, Tensor]:
        """Indices (N,) int64, and which ids are unknown.

        Raises NoId. Warns once if more than MOST_UNSEEN of the ids are unknown.
        """
        raw = plain_ids(raw)
        are_whole = _are_whole(raw) and _are_whole(self.ids) and len(self.ids) > 0
        texts = _one_chunk(raw) if are_whole else self._texts(raw)
        if are_whole:
            index = self._index_of_numbers(_as_int64(texts))
        elif self._is_again(len(texts)):
            known = texts if isinstance(texts, list) else texts.to_pylist()
            places = [self._table.get(text, self.feature.size) for text in known]
            if self.feature.size in places:
                _array(texts)  # raises for what is no text, as the first call does
            index = torch.tensor(places)
        else:
            place = pc.index_in(_array(texts).cast(pa.string()), value_set=self._keys)
            index = torch.tensor(place.fill_null(self.feature.size).to_numpy(zero_copy_only=False))
        index = index.long()
        unseen = index == self.feature.size
        self._warn(texts, unseen)
        return index, unseen

    def _is_again(self, rows: int) -> bool:
        """From the second call on there is a hash table (200 bytes an id), as `index_in` builds its
        own in each call; not for lists as long as the vocabulary, which that finds faster."""
        if self._has_looked and not self._table and rows < len(self.ids):
            self.warm_up()
        self._has_looked = True
        return bool(self._table)

    def _index_of_numbers(self, number_N: Tensor) -> Tensor:
        """As `index_in`: the first of equal ids."""
        if self._sorted is None:
            self._sorted = _as_int64(self.ids).sort(stable=True)
        number_V, index_V = self._sorted
        place_N = torch.searchsorted(number_V, number_N).clamp(max=len(number_V) - 1)
        return index_V[place_N].where(number_V[place_N] == number_N, self.feature.size)

    def places(self, texts: Sequence[str]) -> list[int]:
        """`index` of ids as `raw_ids` writes them; a few are found faster."""
        if not self._table:
            return self.index(texts)[0].tolist()
        found = [self._table.get(text, self.feature.size) for text in texts]
        if not self._has_warned and found.count(self.feature.size) > MOST_UNSEEN * len(found):
            self.index(texts)
        return found

    def plain(self, raw: str | float) -> str | int:
        """The id as the vocabulary would hold it: an int where its ids are and this is one."""
        [text] = self._texts([plain(raw)])
        if self._numbers and raw_ids.INT64.fullmatch(text) and -(2**63) <= int(text) < 2**63:
            return int(text)
        return str(text)

    def texts(self, index_N: Tensor) -> list[str]:
        """The ids of known indices as text."""
        found: list[str] = self._keys.take(pa.array(index_N.numpy())).to_pylist()
        return found

    def warm_up(self) -> None:
        """Build a hash table: it looks up short lists of ids 100 times faster."""
        pairs = [*enumerate(self._keys.to_pylist())]
        self._table = {key: index for index, key in reversed(pairs)}  # the first, as `index_in`

    def _texts(self, raw: Ids) -> list[str] | pa.Array:
        return id_texts(raw, f" of a {self.feature.name}")

    def _warn(self, texts: list[str] | pa.Array, unseen: Tensor) -> None:
        rows, count = len(unseen), int(unseen.sum())
        if self._has_warned or rows < LEAST_ROWS or count <= MOST_UNSEEN * rows:
            return
        self._has_warned = True
        name, like = self.feature.name, ", ".join(map(str, self.ids[:2].to_pylist()))
        logger.warning(
            "%d of %d %s ids have no training row, such as %r; others look like %s",
            *(count, rows, name, str(texts[int(unseen.nonzero()[0])]), like),
        )


def _array(texts: list[str] | pa.Array) -> pa.Array:
    try:
        return texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    except UnicodeEncodeError as error:
        raise DataError(f"ids must be text in UTF-8, got {error.object!r}") from None
