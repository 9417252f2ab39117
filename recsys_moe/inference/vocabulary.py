"""Raw ids <-> dense indices, by the one rule of docs/data.md for what an id is."""

from __future__ import annotations

import logging
import operator
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from recsys_moe.errors import DataError
from recsys_moe.inference.plain import plain, plain_ids, shown
from recsys_moe.schema import Feature

logger = logging.getLogger("recsys_moe.inference")

Ids: TypeAlias = Sequence[str | int | float] | pa.Array
WHOLE_NUMBER = re.compile("0|-?[1-9][0-9]{0,18}")
FRACTION_OF_ZERO = r"\.0+$"
"""As whole numbers look in text that was written from floating point columns."""
LEAST_ROWS, MOST_UNSEEN = 10, 0.9
"""From so many rows on, a larger share of unseen ids than this is likely to be a mistake."""


class NoId(DataError):
    """What stands where an id belongs is none; rows count from 1."""

    def __init__(self, row: int, value: object, place: str) -> None:
        rule = "an id is text or a whole number"
        super().__init__(f"row {row} has no id{place}: {rule}, got {shown(value)}")


def id_text(value: object) -> str | None:
    """The id as text: 7, 7.0 and "7" are "7". None for what is no id: None, NaN, 1.5, True, " "."""
    if isinstance(value, str):
        return value if value.strip() else None
    if isinstance(value, bool):
        return None
    try:
        return str(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        whole = getattr(value, "is_integer", bool)()  # of any floating point type
        return str(int(value)) if whole else None  # type: ignore[call-overload]


def id_texts(ids: Ids, place: str = "", rows_before: int = 0) -> list[str] | pa.Array:
    """`id_text` of all ids; those of an Arrow array of text or integers as an array.

    Raises NoId for the first that is none, with its row and `place`, and TypeError for one id
    where a list belongs.
    """
    if isinstance(ids, str):
        raise TypeError(f"expected a list of ids, got the single id {ids!r}; pass [{ids!r}]")
    if isinstance(ids, pa.Array | pa.ChunkedArray):
        ids = _decoded(ids)
        if _is_text(ids.type) or pa.types.is_integer(ids.type):
            texts = ids.cast(pa.string())
            blank = pc.equal(pc.utf8_trim_whitespace(texts), "").fill_null(True)
            if (row := pc.index(blank, True).as_py()) >= 0:
                raise NoId(rows_before + row + 1, texts[row].as_py(), place)
            return texts
    texts = []
    # Arrow, NumPy, pandas and torch turn themselves into a list.
    for row, value in enumerate(ids.tolist() if hasattr(ids, "tolist") else ids, rows_before + 1):
        if (text := id_text(value)) is None:
            raise NoId(row, value, place)
        texts.append(text)
    return texts


def checked_ids(ids: Ids, place: str = "", rows_before: int = 0) -> list[str] | pa.Array:
    """`id_texts`, but of integers in Arrow the integers: all are ids, and found faster so."""
    return _decoded(ids) if _are_whole(ids) else id_texts(ids, place, rows_before)


def _are_whole(ids: Any) -> bool:
    """Are these an Arrow array of integers that int64 holds, none missing?"""
    is_arrow = isinstance(ids, pa.Array | pa.ChunkedArray)
    return is_arrow and pa.types.is_signed_integer(ids.type) and not ids.null_count


def _decoded(ids: pa.Array | pa.ChunkedArray) -> Any:
    column = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


class Vocabulary:
    """Raw ids -> dense indices; ids that training has not seen -> `feature.size`."""

    def __init__(self, feature: Feature, ids: pa.ChunkedArray) -> None:
        self.feature = feature
        self.ids = ids.combine_chunks()
        self._keys = self.ids.cast(pa.string())
        self._table: dict[str, int] = {}
        self._numbers = pa.types.is_integer(self.ids.type)
        self._has_warned = False

    def index(self, raw: Ids) -> tuple[Tensor, Tensor]:
        """Indices (N,) int64 and which of the ids are unseen. Ids compare as text: 7 is "7".

        Where the ids are integers, the text "7.0" is 7 too. Raises NoId for what is none, and
        logs a warning, once, when nearly all of many ids are unseen.
        """
        raw = plain_ids(raw)
        are_whole = _are_whole(raw) and _are_whole(self.ids)
        texts = _decoded(raw) if are_whole else self._texts(raw)
        if self._table and isinstance(texts, list):
            known = (self._table.get(text, self.feature.size) for text in texts)
            index = torch.tensor([*known], dtype=torch.long)
        else:
            keys = self.ids if are_whole else self._keys
            place = pc.index_in(_array(texts).cast(keys.type), value_set=keys)
            index = torch.tensor(place.fill_null(self.feature.size).to_numpy(zero_copy_only=False))
        index = index.long()
        unseen = index == self.feature.size
        self._warn(texts, unseen)
        return index, unseen

    def plain(self, raw: str | float) -> str | int:
        """The id as the vocabulary would hold it: an int where its ids are and this is one."""
        [text] = self._texts([plain(raw)])
        if self._numbers and WHOLE_NUMBER.fullmatch(text) and -(2**63) <= int(text) < 2**63:
            return int(text)
        return str(text)

    def warm_up(self) -> None:
        """Keep a hash table: short lists of ids are then looked up 100 times faster."""
        self._table = {key: index for index, key in enumerate(self._keys.to_pylist())}

    def _texts(self, raw: Ids) -> list[str] | pa.Array:
        texts = id_texts(raw, f" of a {self.feature.name}")
        if not self._numbers:
            return texts
        if isinstance(texts, list):
            return [re.sub(FRACTION_OF_ZERO, "", text) if "." in text else text for text in texts]
        return pc.replace_substring_regex(texts, FRACTION_OF_ZERO, "")

    def _warn(self, texts: list[str] | pa.Array, unseen: Tensor) -> None:
        rows, count = len(unseen), int(unseen.sum())
        if self._has_warned or rows < LEAST_ROWS or count <= MOST_UNSEEN * rows:
            return
        self._has_warned = True
        name, like = self.feature.name, ", ".join(map(str, self.ids[:2].to_pylist()))
        logger.warning(
            "%d of %d %s ids are unknown to the model, such as %r; it knows ids like %s",
            *(count, rows, name, str(texts[int(unseen.nonzero()[0])]), like),
        )


def _array(texts: list[str] | pa.Array) -> pa.Array:
    try:
        return texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    except UnicodeEncodeError as error:
        raise DataError(f"ids must be text in UTF-8, got {error.object!r}") from None
