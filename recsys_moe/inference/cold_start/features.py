"""Raw feature values -> rows and weights of the feature table of a model.

By the rules of docs/how-to/prepare-data.md for the cells of `prepare`, and the vocabularies and
the scale that training left in the artifact. Axes: P entries, one per category and number that
adds something.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys_moe import raw_ids
from recsys_moe.cells import SWITCHES
from recsys_moe.data.entries import entries_of_table, table_rows
from recsys_moe.errors import DataError, suggestion
from recsys_moe.inference.plain import shown
from recsys_moe.schema import FeatureColumn

SEPARATOR = "|"
"""Between the categories of a list that is given as text."""
LARGEST = float(np.finfo(np.float32).max)
"""Numbers further from 0 are no values of a feature."""
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)

Entries = list[tuple[int, float]]
"""Row of the table and weight."""
RawHistory = list[str] | dict[str | int | float, float | None]
Unknown = dict[str, list[str]]
"""Unknown categories by feature; the model ignores them."""


class FeatureReader:
    """Reads the features of the users, or of the items, of a model."""

    def __init__(
        self, entity: str, features: Sequence[FeatureColumn], categories: pa.Table
    ) -> None:
        """`features`: those the model has, in the order of its table; `categories`: of both
        entities, as features.parquet has them."""
        self.entity = entity
        self._features = {one.name: one for one in features}
        starts = [0, *np.cumsum([table_rows([one]) for one in features]).tolist()]
        self._start = dict(zip(self._features, starts, strict=False))
        of_entity = categories.filter(pc.equal(categories["side"], entity))
        self._index = {name: _vocabulary(of_entity, name) for name in self._features}

    @property
    def names(self) -> list[str]:
        return [*self._features]

    @property
    def kinds(self) -> dict[str, str]:
        """By name: categorical, multi or numeric."""
        return {name: feature.kind for name, feature in self._features.items()}

    def categories(self, name: str) -> list[str]:
        """Known categories in their order; empty for a numeric feature."""
        return [*self._index[name]]

    def read(self, values: Mapping[str, Any]) -> tuple[Entries, Unknown]:
        """Entries of one user or item, of plain values.

        Raises DataError for an unknown name or a wrong value.
        """
        entries: Entries = []
        unknown: Unknown = {}
        for name, value in values.items():
            self._check_name(name)
            feature, start = self._features[name], self._start[name]
            if is_missing(value) or (feature.kind != "numeric" and _is_none(value)):
                continue
            if feature.kind == "numeric":
                entries.append((start, _standardised(_number(name, value), feature)))
                continue
            texts = (
                [_category(name, value)] if feature.kind == "categorical" else _list(name, value)
            )
            index = {self._index[name].get(text, feature.size) for text in texts}
            entries += [(start + i, len(index) ** -0.5) for i in sorted(index) if i < feature.size]
            if feature.size in index:
                unknown[name] = [text for text in texts if text not in self._index[name]]
        return entries, unknown

    def known(self, entity: pa.Table) -> Entries:
        """Entries of the one row of users.parquet or items.parquet."""
        if not self._features:
            return []
        path = Path(f"{self.entity}s.parquet")
        _, row_P, weight_P = entries_of_table(entity, [*self._features.values()], path)
        return [*zip(row_P.tolist(), weight_P.tolist(), strict=True)]

    def named(self, row: int, weight: float) -> tuple[str, str | float | None]:
        """Name of the feature of an entry, and its raw category or number.

        None for an unknown category.
        """
        starts = [*self._start.values()]
        name = [*self._features][bisect_right(starts, row) - 1]
        feature, place = self._features[name], row - self._start[name]
        if feature.kind == "numeric":
            return name, float(f"{feature.mean + feature.std * weight:.6g}")
        texts = (text for text, index in self._index[name].items() if index == place)
        return name, next(texts, None)

    def _check_name(self, name: str) -> None:
        if not self._features:
            setting = "context" if self.entity == "context" else "features"
            raise DataError(
                f"the model has no {self.entity} features, got {name!r}; omit it, or train with "
                f"model.{setting}"
            )
        if name not in self._features:
            raise DataError(
                f"unknown {self.entity} feature {name!r}; {suggestion(name, self._features)}"
            )


def history_of(parts: Sequence[str]) -> RawHistory:
    """From ITEM or ITEM=RATING each: a list without ratings, else ratings by item.

    The first rating of a repeated item counts, as in training. An id may contain "=" if no number
    follows it.
    """
    pairs = [_rated(part) for part in parts]
    if all(rating is None for _, rating in pairs):
        return [*parts]
    first: dict[str | int | float, float | None] = {}
    for item, rating in pairs:
        first.setdefault(item, rating)
    return first


def _rated(part: str) -> tuple[str, float | None]:
    item, _, rating = part.rpartition("=")
    return (item, float(rating)) if item and NUMBER.fullmatch(rating) else (part, None)


def is_missing(value: Any) -> bool:
    """None, blank text, an empty list."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, list) and not value)


def _is_none(category: Any) -> bool:
    return isinstance(category, str) and raw_ids.of_text(category) is None


def _vocabulary(categories: pa.Table, name: str) -> dict[str, int]:
    rows = categories.filter(pc.equal(categories["feature"], name))
    values = raw_ids.plain(rows["value"].combine_chunks())
    return dict(zip(values.to_pylist(), rows["index"].to_pylist(), strict=True))


def _category(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if (text := raw_ids.of_value(value)) is None:
        raise DataError(f"feature {name!r} must be text or a whole number, got {shown(value)}")
    return text


def _list(name: str, value: Any) -> list[str]:
    """Each category once, in their order."""
    parts = value if isinstance(value, list) else _category(name, value).split(SEPARATOR)
    if any(is_missing(part) for part in parts):
        raise DataError(
            f"feature {name!r} must be categories, as a list or separated by {SEPARATOR!r}, none "
            f"empty, got {shown(value)}"
        )
    return list(dict.fromkeys(_category(name, part) for part in parts))


def _number(name: str, value: Any) -> float:
    number = math.nan
    if isinstance(value, str):
        text = SWITCHES.get(value.strip().lower(), value.strip())
        number = float(text) if NUMBER.fullmatch(text) else math.nan
    elif isinstance(value, int | float):
        with suppress(OverflowError):
            number = float(value)
    if not abs(number) <= LARGEST:  # nor NaN
        raise DataError(f"feature {name!r} must be a finite number, got {shown(value)}")
    return number


def _standardised(number: float, feature: FeatureColumn) -> float:
    return min(max((number - feature.mean) / feature.std, -LARGEST), LARGEST)
