"""Inputs of the encoders: features and bags, of users and of items.

Both are lists of table rows, entity after entity. Axes: N entities and one more for the OOV id,
which has no entries, P entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from recsys_moe.data.columns import Rows, known_values, reading_parquet
from recsys_moe.data.rows import Columns
from recsys_moe.errors import DataError
from recsys_moe.kinds import KINDS, positive_task, rating_task
from recsys_moe.schema import SCHEMA_FILE, FeatureColumn, Schema, Task


class FeatureEntries(NamedTuple):
    """Entity i has the entries first[i]..first[i + 1] of `row` (int32) and `weight` (float32)."""

    first: Tensor
    row: Tensor
    weight: Tensor


class BagEntries(NamedTuple):
    """Anchor u has row[first[u]:first[u + 1]] (int32): level x neighbours + neighbour, by ascending
    neighbour. Neighbours of a user are items, those of an item users."""

    first: Tensor
    row: Tensor


def table_rows(features: Sequence[FeatureColumn]) -> int:
    """Rows of the table of these features, one block after the other.

    Numeric ones have one row; others one per category and one for unknown categories.
    """
    return sum(1 if one.kind == "numeric" else one.size + 1 for one in features)


def feature_entries(path: Path, features: Sequence[FeatureColumn], entities: int) -> FeatureEntries:
    """Of users.parquet or items.parquet. Raises DataError naming the column."""
    with reading_parquet(path):
        file = pq.ParquetFile(path)
        for one in features:
            if one.column not in file.schema_arrow.names:
                raise DataError(f"{path}: column {one.column!r} is missing; prepare the data again")
        table = file.read(columns=[one.column for one in features])
    if table.num_rows != entities:
        raise DataError(f"{path} must have {entities} rows, got {table.num_rows}; prepare again")
    return entries_of_table(table, features, path)


def entries_of_table(
    table: pa.Table, features: Sequence[FeatureColumn], path: Path
) -> FeatureEntries:
    """Of the rows of a table with the columns of the features; `path` is for errors.

    Weights: 1 of a category, 1 / sqrt(n) of each of n categories, the value of a number. A missing
    value has no entry.
    """
    parts, base = [], 0
    for one in features:
        with reading_parquet(path):
            entity_P, row_P, weight_P = _READERS[one.kind](table[one.column], one, path)
        parts.append((entity_P, row_P + base, weight_P))
        base += table_rows([one])
    entity_P, row_P, weight_P = (torch.cat(column) for column in zip(*parts, strict=True))
    order_P = entity_P.argsort(stable=True)
    return FeatureEntries(_first(entity_P, table.num_rows), row_P[order_P].int(), weight_P[order_P])


Read = tuple[Tensor, Tensor, Tensor]
"""Entity and row, both int64, and weight, float32. (P,)"""


def _categorical(column: pa.ChunkedArray, feature: FeatureColumn, path: Path) -> Read:
    known_N, index_P = known_values(column, pa.int64())
    _check_range(index_P, feature, path)
    return known_N.nonzero()[:, 0], index_P.clone(), torch.ones(len(index_P))


def _multi(column: pa.ChunkedArray, feature: FeatureColumn, path: Path) -> Read:
    if not pa.types.is_list(column.type):
        raise DataError(f"{path}: {feature.column!r} must be lists; prepare the data again")
    lists = column.combine_chunks()
    parents, parts = pc.list_parent_indices(lists), pc.list_flatten(lists)
    _, entity_P = known_values(pa.chunked_array([parents]), pa.int64())
    known_P, index_P = known_values(pa.chunked_array([parts]), pa.int64())
    if not known_P.all():
        raise DataError(
            f"{path}: {feature.column!r} must have no null in a list; prepare the data again"
        )
    _check_range(index_P, feature, path)
    count_P = torch.bincount(entity_P)[entity_P] if len(entity_P) else torch.empty(0)
    return entity_P.clone(), index_P.clone(), count_P.float().rsqrt()


def _numeric(column: pa.ChunkedArray, feature: FeatureColumn, path: Path) -> Read:
    known_N, value_P = known_values(column, pa.float32())
    if not value_P.isfinite().all():
        raise DataError(f"{path}: {feature.column!r} must be finite; prepare the data again")
    entity_P = known_N.nonzero()[:, 0]
    return entity_P, torch.zeros_like(entity_P), value_P.clone()


_READERS = {"categorical": _categorical, "multi": _multi, "numeric": _numeric}


def _check_range(index_P: Tensor, feature: FeatureColumn, path: Path) -> None:
    if not ((index_P >= 0) & (index_P <= feature.size)).all():
        raise DataError(
            f"{path}: {feature.column!r} must be in 0..{feature.size}; prepare the data again"
        )


def _first(entity_P: Tensor, entities: int) -> Tensor:
    """Where the entries of each entity start, then those of the OOV id, none, and the end."""
    counts_N = torch.bincount(entity_P, minlength=entities + 1)
    return torch.cat([counts_N.new_zeros(1), counts_N.cumsum(0)])


def bag_entries(
    rows: Rows, schema: Schema, levels: int | None, *, of_items: bool = False
) -> BagEntries:
    """N(u): the positives and rated items of users in training, each item once.

    Positive: label 1 of the first task that has positives; rated: with a label of another kind.

    `levels`: levels of the rating (of the first task of ratings), evenly spaced from the lowest to
    the highest; items without a rating have one level more. None: no levels.
    `of_items`: N(i) instead, the users of each item.
    """
    sizes = schema.user.size, schema.item.size
    anchors, neighbours = sizes[::-1] if of_items else sizes

    def keys(chunk: Columns) -> tuple[Tensor, Tensor]:
        user_P, item_P, level_P = _positive_or_rated(chunk, schema, levels)
        key_P = item_P * neighbours + user_P if of_items else user_P * neighbours + item_P
        return key_P, level_P.to(torch.int8)  # 9 bytes per entry are held, not 24

    key_P, level_P = map(torch.cat, zip(*map(keys, rows.chunks()), strict=True))
    key_P, order_P = key_P.sort(stable=True)
    is_new_P = torch.ones_like(key_P, dtype=torch.bool)
    is_new_P[1:] = key_P[1:] != key_P[:-1]
    key_P, level_P = key_P[is_new_P], level_P[order_P[is_new_P]]
    row_P = level_P.long() * neighbours + key_P % neighbours
    return BagEntries(_first(key_P // neighbours, anchors), row_P.int())


def is_event(chunk: Columns, schema: Schema) -> Tensor:
    """(N,) bool: rows that say what a user did: positives of the first task that has any, and rows
    with a label of another kind."""
    positive = positive_task(schema.tasks)
    counts_N = torch.zeros(len(chunk), dtype=torch.bool)
    if positive is not None:
        counts_N |= chunk.labels[:, positive] == 1
    for column, task in enumerate(schema.tasks):
        if not KINDS[task.kind].has_positives:
            counts_N |= ~chunk.labels[:, column].isnan()
    return counts_N


def _positive_or_rated(
    chunk: Columns, schema: Schema, levels: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """User, item and level (int64) of rows that count and whose ids are known."""
    counts_N = is_event(chunk, schema)
    counts_N &= (chunk.user < schema.user.size) & (chunk.item < schema.item.size)
    user_P, item_P = chunk.user[counts_N].long(), chunk.item[counts_N].long()
    if levels is None:
        return user_P, item_P, torch.zeros_like(user_P)
    rated = _rated(schema)
    bounds = _bounds(schema, schema.tasks[rated])
    return user_P, item_P, _levels(chunk.labels[counts_N, rated], levels, bounds)


def _bounds(schema: Schema, task: Task) -> tuple[float, float]:
    """The lowest and the highest training label. Raises DataError when schema.json has none."""
    try:
        counts = schema.labels["train"][task.name]
        return counts["min"], counts["max"]
    except KeyError as error:
        raise DataError(
            f"{SCHEMA_FILE}: labels.train must hold {error} for bags of ratings; "
            "prepare the data again"
        ) from None


def rating_of_level(level: int, levels: int | None, schema: Schema) -> float | None:
    """The label in the middle of a level of `bag_entries`; None without a rating."""
    if levels is None or level >= levels:
        return None
    low, high = _bounds(schema, schema.tasks[_rated(schema)])
    return low + level * (high - low) / max(levels - 1, 1)


def _levels(label_P: Tensor, levels: int, bounds: tuple[float, float]) -> Tensor:
    """0..levels - 1 for lowest to highest, `levels` where there is no label."""
    low, high = bounds
    level_P = (label_P.double() - low) / max(high - low, 1e-12) * (levels - 1)
    return level_P.round().clamp(0, levels - 1).nan_to_num(levels).long()


def matched_levels(old: Schema, new: Schema, levels: int) -> Tensor:
    """Per level of bags of `new` the nearest one of `old`, by their ratings. (levels + 1,)"""
    return _levels(_ratings(new, levels), levels, _bounds(old, new.tasks[_rated(new)]))


def line_of_levels(old: Schema, new: Schema, levels: int) -> Tensor:
    """Per level of bags of `new`: its rating on a scale from the lowest, 0, to the highest, 1, of
    `old`; NaN without a rating. (levels + 1,)"""
    low, high = _bounds(old, new.tasks[_rated(new)])
    return (_ratings(new, levels) - low) / max(high - low, 1e-12)


def _ratings(schema: Schema, levels: int) -> Tensor:
    low, high = _bounds(schema, schema.tasks[_rated(schema)])
    return torch.cat([torch.linspace(low, high, levels), torch.tensor([torch.nan])])


def _rated(schema: Schema) -> int:
    number = rating_task(schema.tasks)
    assert number is not None  # `levels` are refused for data without ratings
    return number
