"""From values to the vocabulary or the scale of a feature, and from these to its column.

Vocabularies are in ascending order of their text. What is noted of some values adds up exactly, so
that the result does not depend on how the rows are cut or ordered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data_prep.features.spec import Entity, Wanted
from data_prep.ids import one_chunk, sorted_distinct
from recsys_moe.schema import DataError, FeatureColumn

LARGEST = float(np.finfo(np.float32).max)
"""Numbers further from 0 are not values of a feature."""
AT_ONCE = 1 << 16
"""Numbers at once as Python's own, which take much memory."""


@dataclass(frozen=True)
class Noted:
    """Of the values of one feature: the categories, or sums of the numbers."""

    categories: pa.Array = field(default_factory=lambda: pa.array([], pa.string()))
    """Distinct, in no set order."""
    sums: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """By denominator d: of the numbers n/d how many, sum of n, sum of n squared."""

    def __add__(self, other: Noted) -> Noted:
        both = pa.concat_arrays([self.categories, other.categories])
        sums = {
            d: _plus(self.sums.get(d, (0, 0, 0)), other.sums.get(d, (0, 0, 0)))
            for d in self.sums | other.sums
        }
        return Noted(pc.unique(both), sums)


def note(values: Any) -> Noted:
    """Of a column of values as they were read; nulls say nothing."""
    if pa.types.is_floating(values.type):
        return Noted(sums=_sums(values.drop_null()))
    if pa.types.is_list(values.type):
        values = pc.list_flatten(values)
    return Noted(one_chunk(pc.unique(values.drop_null())))


def _sums(numbers: Any) -> dict[int, tuple[int, int, int]]:
    sums: dict[int, tuple[int, int, int]] = {}
    for start in range(0, len(numbers), AT_ONCE):
        counts = one_chunk(pc.value_counts(numbers.slice(start, AT_ONCE)))
        for number, times in zip(*(entity.to_pylist() for entity in counts.flatten()), strict=True):
            n, d = number.as_integer_ratio()
            sums[d] = _plus(sums.get(d, (0, 0, 0)), (times, times * n, times * n * n))
    return sums


def _plus(one: tuple[int, int, int], two: tuple[int, int, int]) -> tuple[int, int, int]:
    return one[0] + two[0], one[1] + two[1], one[2] + two[2]


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A feature with what training says of it."""

    entity: Entity
    feature: FeatureColumn
    vocabulary: pa.Array
    """Category of each index as text; empty of numeric features."""

    def encode(self, values: Any) -> pa.Array:
        """The column of the prepared folder from one of values as they were read."""
        values = one_chunk(values)
        if self.feature.kind == "numeric":
            return self._standardised(values)
        if self.feature.kind == "multi":
            return self._lists(values)
        return pc.if_else(values.is_null(), pa.scalar(None, pa.int32()), self._index(values))

    def _index(self, text: pa.Array) -> pa.Array:
        """int32; `size` for what is not in the vocabulary."""
        return pc.fill_null(pc.index_in(text, value_set=self.vocabulary), self.feature.size)

    def _lists(self, values: pa.Array) -> pa.Array:
        """Of every list the indices that it has, each once, ascending."""
        index = self._index(pc.list_flatten(values)).to_numpy().astype(np.int64)
        row = pc.list_parent_indices(values).to_numpy().astype(np.int64)
        width = self.feature.size + 1
        row, index = np.divmod(sorted_distinct(row * width + index), width)
        ends = np.cumsum(np.bincount(row, minlength=len(values)))
        offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
        known = pa.array(index.astype(np.int32))
        return pa.ListArray.from_arrays(offsets, known, mask=values.is_null())

    def _standardised(self, values: pa.Array) -> pa.Array:
        number = values.to_numpy(zero_copy_only=False)
        scaled = np.clip((number - self.feature.mean) / self.feature.std, -LARGEST, LARGEST)
        return pa.array(scaled.astype(np.float32), mask=np.isnan(number))


def fit(one: Wanted, noted: Noted) -> Fitted:
    """Raises DataError where training has no value at all."""
    known = noted.categories.take(pc.sort_indices(noted.categories))
    if len(known) == 0 and not noted.sums:
        whose = "" if one.entity == "context" else f"for any {one.entity} "
        raise DataError(
            f"feature {one.feature.name!r} has no value {whose}in the training rows; omit it"
        )
    feature = replace(one.feature, size=len(known))
    if one.feature.kind == "numeric":
        mean, std = mean_and_std(noted)
        feature = replace(feature, mean=mean, std=std)
    return Fitted(entity=one.entity, feature=feature, vocabulary=known)


def mean_and_std(noted: Noted) -> tuple[float, float]:
    """Of the population, rounded once each; a deviation of 0 counts as 1."""
    count = sum(many for many, _, _ in noted.sums.values())
    total = sum(Fraction(n, d) for d, (_, n, _) in noted.sums.items())
    squares = sum(Fraction(s, d * d) for d, (_, _, s) in noted.sums.items())
    mean = Fraction(total) / count
    return float(mean), math.sqrt(Fraction(squares) / count - mean**2) or 1.0


def vocabularies(features: Sequence[Fitted]) -> pa.Table:
    """One row per category: `entity` and `feature`, `index` (int32) and `value` (text)."""
    tables = [
        pa.table(
            {
                "side": pa.array([one.entity] * len(one.vocabulary), pa.string()),
                "feature": pa.array([one.feature.name] * len(one.vocabulary), pa.string()),
                "index": pa.array(np.arange(len(one.vocabulary), dtype=np.int32)),
                "value": one.vocabulary,
            }
        )
        for one in features
    ]
    return pa.concat_tables(tables)
