"""Cold-start users and items from the columns of a file."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import torch

from recsys_moe.errors import DataError
from recsys_moe.inference.cold_start.features import SEPARATOR, RawHistory, history_of, is_missing
from recsys_moe.inference.cold_start.whom import ColdItem, ColdUser, Entity, Resolved
from recsys_moe.inference.events.user_events import Identity
from recsys_moe.inference.id_scorer import IdScorer
from recsys_moe.inference.vocabulary import Ids

HISTORY = "history"
"""The column with the history of a cold-start user."""


def with_columns(
    predictor: IdScorer, entity: Entity, ids: Ids, rows: pa.Table, rows_before: int = 0
) -> tuple[Resolved, dict[str, int]]:
    """The ids, with the unknown ones as cold-start users or items made of the columns of `rows`.

    A column holds the feature of its name, HISTORY the items a user interacted with. Also returns
    the number of rows with unknown categories and history items. Raises DataError with the row.
    """
    vocabulary = predictor.users if entity == "user" else predictor.items
    columns = [name for name in columns_read(predictor, entity) if name in rows.column_names]
    index_N, are_unseen_N = vocabulary.index(ids)
    unseen_N = are_unseen_N.nonzero()[:, 0]
    identities: dict[int, Identity] = {}
    if predictor.store is not None and len(predictor.store):
        named = predictor.cold_users.identities(entity, ids, are_unseen_N)
        identities = predictor.observed(named)
    if not columns or not len(unseen_N):
        return Resolved(index_N, identities=identities), {}
    given = rows.select(columns).take(pa.array(unseen_N.numpy())).to_pylist()
    read = []
    for place, cells in zip(unseen_N.tolist(), given, strict=True):
        try:
            read.append(predictor.cold_users.read(entity, _cold(predictor, entity, cells)))
        except DataError as error:
            raise DataError(f"row {rows_before + place + 1}: {error}") from None
    index_N[unseen_N] = ~torch.arange(len(read))
    parts, unused = [parts for parts, _ in read], [unused for _, unused in read]
    unknown = {
        "unknown_category": sum(bool(one.categories) for one in unused),
        "unknown_history": sum(bool(one.items) for one in unused),
    }
    counts = {name: count for name, count in unknown.items() if count}
    return Resolved(index_N, parts, unused, identities), counts


def columns_read(predictor: IdScorer, entity: Entity) -> list[str]:
    """The columns that describe an unknown user or item, where a file has them."""
    names = predictor.cold_users.readers[entity].names
    has_history = entity == "user" and predictor.artifact.config.model.item_bag != "none"
    return [*names, HISTORY] if has_history and HISTORY not in names else names


def _cold(predictor: IdScorer, entity: Entity, cells: dict[str, Any]) -> ColdItem:
    names = predictor.cold_users.readers[entity].names
    features = {name: cells[name] for name in names if name in cells}
    if entity == "item":
        return ColdItem(features)
    return ColdUser(features, _history(cells.get(HISTORY) if HISTORY not in names else None))


def _history(cell: Any) -> RawHistory:
    """From `50|172=5`, one id, or a list. Raises DataError for an empty part."""
    if cell is None or cell != cell or (isinstance(cell, str) and not cell.strip()):
        return []
    parts = cell if isinstance(cell, list) else str(cell).split(SEPARATOR)
    if any(is_missing(part) for part in parts):
        raise DataError(
            f"{HISTORY!r} must be items separated by {SEPARATOR!r}, none empty, got {cell!r}"
        )
    return history_of([str(part).strip() for part in parts])
