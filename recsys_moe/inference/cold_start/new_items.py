"""Adds cold-start items to a catalogue, from a file with their features.

Axes: N known items, M new ones, D width of the embeddings, T tasks.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor, nn

from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.errors import ConfigError, DataError, suggestion
from recsys_moe.files import table_suffix
from recsys_moe.inference.cold_start.features import is_missing
from recsys_moe.inference.cold_start.whom import ColdItem
from recsys_moe.inference.files.tables import INPUTS, read_whole
from recsys_moe.inference.predictor import Predictor
from recsys_moe.inference.vocabulary import NoId, id_texts
from recsys_moe.model.recommender import Recommender


class Extended(NamedTuple):
    """A predictor with more items, and counts of the items in the file."""

    predictor: Predictor
    new: int
    known: int
    """Items that the model knows already; they keep their vectors."""
    unknown_category: int
    """New items with an unknown category."""


def read_items(path: Path) -> pa.Table:
    """A table of items: CSV, TSV (or .gz of it) or Parquet. Raises ConfigError and DataError."""
    path = Path(path)
    if table_suffix(path) not in INPUTS:
        raise ConfigError(f"--items must end in one of {', '.join(INPUTS)}, got {path}")
    if not path.is_file():
        raise DataError(f"--items {path}: no such file; pass a table with a column item")
    table = read_whole(path)
    if "item" not in table.column_names:
        hint = suggestion("item", table.column_names)
        raise DataError(f"--items {path}: column 'item' is missing; {hint}")
    return table


def with_items(predictor: Predictor, items: pa.Table) -> Extended:
    """The predictor with the items of a table added to its catalogue.

    Column `item` holds raw ids, a column with the name of a feature its raw values, and a column
    with the name of a column of items.parquet the values to show and filter by. Raises DataError
    with the row.
    """
    ids = _ids(items)
    unseen_N = predictor.items.index(ids)[1]
    rows = unseen_N.nonzero()[:, 0].tolist()
    _check_ids(predictor, [(row, ids[row]) for row in rows])
    columns = [n for n in predictor.cold_users.readers["item"].names if n in items.column_names]
    parts, unused = [], []
    for row, cells in zip(rows, _take(items, columns, rows), strict=True):
        try:
            made_of, left = predictor.cold_users.read("item", ColdItem(cells))
        except DataError as error:
            raise DataError(f"row {row + 1} of the items: {error}") from None
        parts.append(made_of)
        unused.append(left)
    more_MD = predictor.cold_users.vectors("item", parts)
    unknown = sum(bool(one.categories) for one in unused)
    shown = _shown(predictor.artifact.items, items.take(pa.array(rows, pa.int64())))
    artifact = _extended(predictor.artifact, shown, more_MD)
    return Extended(Predictor(artifact, predictor.store), len(rows), len(ids) - len(rows), unknown)


def _ids(items: pa.Table) -> list[str]:
    try:
        ids = id_texts(items["item"], " in 'item'")
    except NoId as error:
        raise DataError(f"items: {error}") from None
    return ids if isinstance(ids, list) else ids.to_pylist()


def _check_ids(predictor: Predictor, new: Sequence[tuple[int, str]]) -> None:
    """Raises DataError for a repeated id, and for text where the known ids are integers."""
    first: dict[str | int, int] = {}
    numbers = pa.types.is_integer(predictor.items.ids.type)
    for row, raw in new:
        item = predictor.items.plain(raw)
        if item in first:
            raise DataError(
                f"row {row + 1} of the items: item {item} is also in row {first[item] + 1}; "
                "remove one of them"
            )
        if numbers and not isinstance(item, int):
            raise DataError(
                f"row {row + 1} of the items: item ids of this model must be whole numbers, "
                f"got {item!r}"
            )
        first[item] = row


def _take(table: pa.Table, columns: list[str], rows: list[int]) -> list[dict[str, Any]]:
    """Without columns a table has no rows."""
    if not columns:
        return [{} for _ in rows]
    return table.select(columns).take(pa.array(rows, pa.int64())).to_pylist()


def _shown(known: pa.Table, new: pa.Table) -> pa.Table:
    """The new rows in the columns of items.parquet; null where a column is missing."""
    columns = []
    for field in known.schema:
        if field.name == "item_index":
            values = pa.array(range(known.num_rows, known.num_rows + new.num_rows), field.type)
        elif field.name in new.column_names:
            values = _cells(new[field.name], field)
        else:
            values = pa.nulls(new.num_rows, field.type)
        columns.append(values)
    return pa.Table.from_arrays(columns, names=known.column_names)


def _cells(column: pa.ChunkedArray, field: pa.Field) -> pa.Array:
    cells: Sequence[str | None] = [
        None if is_missing(c) else "|".join(map(str, c)) if isinstance(c, list) else str(c)
        for c in column.to_pylist()
    ]
    if field.name == "item":
        cells = [*id_texts(column)]
    try:
        return pa.array(cells, pa.string()).cast(field.type)
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"items: column {field.name!r} does not fit the model's: {reason}"
        ) from None


def _extended(artifact: Artifact, shown: pa.Table, more_MD: Tensor) -> Artifact:
    size, new = artifact.schema.item.size, len(more_MD)
    seen, events = artifact.seen["items"], dict(artifact.events)
    if events:
        item_P = events["item"]
        events["item"] = torch.where(item_P < size, item_P, item_P + new)
    schema = replace(artifact.schema, item=replace(artifact.schema.item, size=size + new))
    return replace(
        artifact,
        schema=schema,
        model=_with_rows(artifact.model, more_MD),
        items=pa.concat_tables([artifact.items, shown.cast(artifact.items.schema)]),
        seen={**artifact.seen, "items": torch.where(seen < size, seen, seen + new)},
        events=events,
        added_items=artifact.added_items + new,
    )


def _with_rows(model: Recommender, more_MD: Tensor) -> Recommender:
    """The model with more items, inserted before the OOV embedding; it shares the other parts."""
    table_ND = model.item_embedding.weight.detach()
    rows_ND = torch.cat([table_ND[:-1], table_ND[-1] + more_MD, table_ND[-1:]])
    result = model.with_parts(item_embedding=nn.Embedding.from_pretrained(rows_ND))
    if model.biases is not None:
        result.biases = biases = copy.copy(model.biases)
        biases._buffers = {**model.biases._buffers}
        known_NT = biases.item_IT
        none_MT = known_NT[-1:].expand(len(more_MD), -1)
        biases.item_IT = torch.cat([known_NT[:-1], none_MT, known_NT[-1:]])
    return result
