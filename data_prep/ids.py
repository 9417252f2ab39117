"""Raw ids and their dense indices, which follow ascending raw id."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Index = NDArray[np.int32]
"""Dense indices, in the width that they are written in."""


def encode(raw: pa.Array | pa.ChunkedArray) -> tuple[Index, pa.Array]:
    """Index of every entry of `raw`, and the distinct raw ids in ascending order."""
    encoded = one_chunk(raw).dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    rank = np.empty(len(order), dtype=np.int32)
    rank[order.to_numpy()] = np.arange(len(order))
    codes = rank[encoded.indices.to_numpy()]
    return codes, encoded.dictionary.take(order)


def pair_keys(user: Index | Ints, item: Index | Ints, num_items: int) -> Ints:
    """A pair as one number: user * num_items + item."""
    return user.astype(np.int64) * num_items + item


def sorted_distinct(values: NDArray[Any]) -> NDArray[Any]:
    """np.unique by sorting: the hash table that NumPy 2.3 and later use is several times slower."""
    ordered = np.sort(values)
    new = np.ones(len(ordered), dtype=bool)
    new[1:] = ordered[1:] != ordered[:-1]
    return ordered[new]


def one_per_value(values: Index | Ints, *, last: bool = False) -> Ints:
    """Positions, ascending, of the first (or last) entry of every distinct value."""
    order = np.argsort(values, kind="stable")
    edge = np.ones(len(order), dtype=bool)
    edge[slice(None, -1) if last else slice(1, None)] = values[order[1:]] != values[order[:-1]]
    return np.sort(order[edge])


def repeats(values: Index | Ints) -> NDArray[np.bool_]:
    """Where the value is one that an earlier place has too."""
    again = np.zeros(len(values), dtype=bool)
    if len(sorted_distinct(values)) < len(values):  # faster than the search, and nearly never so
        again[:] = True
        again[one_per_value(values)] = False
    return again


def trained_first(train: Index, size: int) -> tuple[int, Index, Index]:
    """How many of the indices 0..size-1 training has, all of them with these first, and for every
    index its place among them.

    `train` are the indices of the training rows.
    """
    is_trained = np.zeros(size, dtype=bool)
    is_trained[train] = True
    order = np.argsort(~is_trained, kind="stable").astype(np.int32)
    place = np.empty_like(order)
    place[order] = np.arange(size)
    return int(is_trained.sum()), order, place


def align(features: pa.Table | None, key: str, vocabulary: pa.Array) -> pa.Table:
    """One row per id of `vocabulary`, in its order; null where `features` has no such id."""
    if features is None:
        return pa.table({key: vocabulary})
    keys = one_chunk(features[key]).cast(pa.string())
    rows = pc.index_in(vocabulary.cast(pa.string()), value_set=keys)
    return features.drop_columns([key]).take(rows).add_column(0, key, vocabulary)


def typed(text: pa.Array | pa.ChunkedArray, *, are_whole: bool) -> pa.Array:
    """int64 of texts that are plain whole numbers and fit; else the texts."""
    column = one_chunk(text)
    try:
        return column.cast(pa.int64()) if are_whole else column
    except pa.ArrowInvalid:  # 19 digits can still be beyond int64
        return column


def one_chunk(column: pa.Array | pa.ChunkedArray) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
