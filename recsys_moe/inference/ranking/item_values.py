"""What the columns of items.parquet hold: values to show, and values that filters may name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from recsys_moe.errors import ConfigError, suggestion
from recsys_moe.inference.ranking.item_filters import (
    NUMBERS,
    SEPARATOR,
    TEXTS,
    filter_columns,
    is_number,
)

KEPT = 50
"""Values that a column offers to those who filter; a column of more different ones offers none."""
Value = str | int | float | None


@dataclass(frozen=True)
class ItemColumn:
    """A column of the items and what conditions may say about it."""

    name: str
    kind: Literal["number", "text"]
    operators: list[str]
    values: list[str]
    """The members of a text column, the commonest first; empty where they are too many."""


@dataclass(frozen=True)
class Members:
    """Values of a column; a text with `|` has several, a missing one none."""

    names: list[str]
    row_M: Tensor
    """Row of the table of each."""
    name_M: Tensor
    """Place in `names` of each."""


def item_columns(items: pa.Table) -> list[ItemColumn]:
    """All that conditions may name."""
    columns = []
    for name in filter_columns(items):
        if is_number(items[name].type):
            columns.append(ItemColumn(name, "number", [*NUMBERS], []))
        else:
            columns.append(ItemColumn(name, "text", [*TEXTS], _few_values(items[name])))
    return columns


def _few_values(column: pa.ChunkedArray) -> list[str]:
    """The members of a column, the commonest first, where they are at most KEPT."""
    counts = pc.value_counts(_split(column)[1])
    if len(counts) > KEPT:
        return []
    pairs = sorted(counts.to_pylist(), key=lambda pair: (-pair["counts"], pair["values"]))
    return [pair["values"] for pair in pairs]


def members_of(column: pa.ChunkedArray) -> Members:
    """All members of a column."""
    row_M, value_M = _split(column)
    codes = value_M.dictionary_encode()
    places = (torch.tensor(place.to_numpy()).long() for place in (row_M, codes.indices))
    return Members(codes.dictionary.to_pylist(), *places)


def _split(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Rows (M,) and texts (M,) of the members."""
    lists = pc.split_pattern(column.combine_chunks().cast(pa.string()), SEPARATOR)
    row_M, value_M = pc.list_parent_indices(lists), pc.list_flatten(lists)
    there_M = pc.not_equal(value_M, "")
    return row_M.filter(there_M), value_M.filter(there_M)


def item_values(items: pa.Table, index_K: Tensor, columns: Sequence[str]) -> list[dict[str, Value]]:
    """Per index the values of `columns`. Raises ConfigError for an unknown one."""
    known = filter_columns(items)
    for name in columns:
        if name not in known:
            raise ConfigError(f"unknown column {name!r}; {suggestion(name, known)}")
    if not columns:  # a table without columns has no rows
        return [{} for _ in index_K]
    rows = items.select(list(columns)).take(pa.array(index_K.numpy())).to_pylist()
    return [{name: _plain(value) for name, value in row.items()} for row in rows]


def _plain(value: object) -> Value:
    """As JSON has it; NaN is nothing."""
    if value is None or value != value:
        return None
    return value if isinstance(value, str | int | float) else str(value)
