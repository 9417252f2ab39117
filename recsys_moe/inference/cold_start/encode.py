"""Vectors of cold-start users and items.

The out-of-vocabulary (OOV) embedding, plus the embeddings of the features, plus the pooled
embeddings of the items in the history.

Axes: U cold-start users of a request, P entries, D width of the embeddings, W that of histories.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from recsys_moe import raw_ids
from recsys_moe.artifact.bags import pooled
from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.config.encoders import bag_levels, chosen_features
from recsys_moe.data.entries import bag_entries
from recsys_moe.data.rows import Columns
from recsys_moe.errors import DataError
from recsys_moe.inference.cold_start.features import Entries, FeatureReader
from recsys_moe.inference.cold_start.model import ColdStartVectors, Parts
from recsys_moe.inference.cold_start.whom import (
    ENTITIES,
    ColdItem,
    ColdUser,
    Entity,
    RawId,
    Resolved,
    Unused,
    Whom,
    plain_history,
)
from recsys_moe.inference.events.observed import Event
from recsys_moe.inference.events.reader import NO_EVENTS, EventReader
from recsys_moe.inference.events.user_events import Identity
from recsys_moe.inference.plain import plain, plain_dict, plain_ids, shown
from recsys_moe.inference.vocabulary import Vocabulary
from recsys_moe.kinds import positive_task, rating_task


class ColdStart:
    """Turns cold-start users and items into vectors, with the encoders of the artifact."""

    def __init__(self, artifact: Artifact, users: Vocabulary, items: Vocabulary) -> None:
        self._artifact, self._users, self._items = artifact, users, items
        config, schema = artifact.config, artifact.schema
        self._width = config.model.embedding_dim
        self.levels = bag_levels(config, schema)
        self.events = EventReader(schema) if config.model.reads_events else None
        """None for a model that reads no events."""
        chosen = chosen_features(config, schema)
        self.readers: dict[str, FeatureReader] = {
            entity: FeatureReader(entity, chosen[entity], artifact.categories)
            for entity in ENTITIES
        }

    def resolve(self, entity: Entity, whom: Whom) -> Resolved:
        """Indices of ids, and the entries of cold-start users or items. Raises DataError."""
        if isinstance(whom, Resolved):
            return whom
        vocabulary = self._users if entity == "user" else self._items
        if not isinstance(whom, list | tuple):
            whom = plain_ids(whom)
        new = {row: one for row, one in enumerate(whom) if isinstance(one, ColdItem)}
        if not new:
            index_N, unseen_N = vocabulary.index(whom)
            return Resolved(index_N, identities=self.identities(entity, whom, unseen_N))
        known = [row for row in range(len(whom)) if row not in new]
        index_N = torch.empty(len(whom), dtype=torch.long)
        index_N[[*new]] = ~torch.arange(len(new))
        index_N[known] = vocabulary.index([whom[row] for row in known])[0]
        read = [self.read(entity, cold) for cold in new.values()]
        parts, unused = [parts for parts, _ in read], [unused for _, unused in read]
        identities = self.identities(entity, whom, index_N == vocabulary.feature.size)
        identities |= {row: found for row, one in new.items() if (found := self._events(one))}
        return Resolved(index_N, parts, unused, identities)

    def identities(self, entity: Entity, whom: Any, unseen_N: Tensor) -> dict[int, Identity]:
        """Raw ids of unknown users, by row, for models that read events."""
        if self.events is None or entity == "item":
            return {}
        rows = unseen_N.nonzero()[:, 0].tolist()
        return {row: str(raw_ids.of_value(plain(whom[row]))) for row in rows}

    def _events(self, cold: ColdItem) -> tuple[Event, ...]:
        """Of a cold-start user. Raises DataError."""
        if not isinstance(cold, ColdUser) or not cold.events:
            return ()
        if self.events is None:
            raise DataError(NO_EVENTS)
        return (*self.events.read(cold.events, of_users=False),)

    def encoder(
        self, users: Sequence[Parts], items: Sequence[Parts] = ()
    ) -> ColdStartVectors | None:
        """The encoder of the cold-start users and items of a request; None without any."""
        if not users and not items:
            return None
        seen = [one.history % self._artifact.known_items for one in users]
        users_UD, items_UD = self.vectors("user", users), self.vectors("item", items)
        return ColdStartVectors(users_UD, items_UD, {"user": users, "item": items}, seen)

    def read(self, entity: Entity, cold: ColdItem) -> tuple[Parts, Unused]:
        """The entries of its vector, and what the model ignores. Raises DataError."""
        if entity == "user" and not isinstance(cold, ColdUser):
            raise DataError("expected a ColdUser, got a ColdItem; pass ColdUser(features, history)")
        history = plain_history(cold.history) if isinstance(cold, ColdUser) else []
        if entity == "item" and history:
            raise DataError("an item has no history; pass ColdItem(features)")
        features = plain_dict(cold.features, "features")
        entries, categories = self.readers[entity].read(features)
        row_P, unknown, repeated = self._history(history)
        return Parts(entries, row_P), Unused(categories, unknown, repeated)

    def vectors(self, entity: Entity, parts: Sequence[Parts]) -> Tensor:
        """What is added to the OOV embedding. (U, D)"""
        sum_UD = torch.zeros(len(parts), self._width)
        table_RD = self._artifact.encoders.get(f"{entity}s.table_RD")
        if table_RD is not None and parts:
            sum_UD = _sums(table_RD, [one.features for one in parts])
        if any(len(one.history) for one in parts):
            histories = [one.history for one in parts]
            sum_UD = sum_UD + pooled(self._artifact.encoders, entity, histories)
        return sum_UD

    def _history(
        self, history: list[Any] | dict[Any, Any]
    ) -> tuple[Tensor, list[RawId], list[RawId]]:
        """Rows (P,) of the table of histories, one per known item; unknown and repeated items."""
        if not history:
            return torch.empty(0, dtype=torch.long), [], []
        if self._artifact.config.model.item_bag == "none":
            raise DataError(
                "the model has no histories; omit the history, or train with model.item_bag"
            )
        raw = [*history]
        item_P = self._items.index(raw)[0]
        unseen_P = item_P >= self._artifact.known_items
        rating_P = torch.full((len(raw),), math.nan)
        if isinstance(history, dict):
            rating_P = torch.tensor([self._rating(*pair) for pair in history.items()])
        unknown = [raw[place] for place in unseen_P.nonzero()[:, 0].tolist()]
        known = ~unseen_P
        entries = self._entries(item_P[known], rating_P[known])
        if len(entries) == int(known.sum()):
            return entries, unknown, []
        return entries, unknown, _repeated(raw, item_P.where(known, -1).tolist())

    def _rating(self, item: RawId, rating: float | None) -> float:
        """NaN for None. Raises DataError for a value outside the range of the task."""
        if rating is None:
            return math.nan
        tasks = self._artifact.schema.tasks
        number = rating_task(tasks)
        if number is None:
            raise DataError(
                f"the model has no rating task, got the rating {shown(rating)} for item {item}; "
                "pass a list of items"
            )
        task = tasks[number]
        low = -math.inf if task.low is None else task.low
        high = math.inf if task.high is None else task.high
        is_number = isinstance(rating, int | float) and not isinstance(rating, bool)
        if not is_number or not math.isfinite(rating) or not low <= rating <= high:
            bounds = f" in {low:g}..{high:g}" if math.isfinite(high - low) else ""
            raise DataError(
                f"{task.name} of item {item} must be a finite number{bounds}, got {shown(rating)}"
            )
        return float(rating)

    def _entries(self, item_P: Tensor, rating_P: Tensor) -> Tensor:
        """By the rule of training rows, for one user; of an item that comes again, the first."""
        schema = self._artifact.schema
        known = replace(schema.item, size=self._artifact.known_items)
        positive, rated = positive_task(schema.tasks), rating_task(schema.tasks)
        labels_PT = torch.full((len(item_P), len(schema.tasks)), math.nan)
        if rated is not None:
            labels_PT[:, rated] = rating_P
        if positive is not None:
            labels_PT[:, positive] = 1.0
        elif self.levels is None:
            labels_PT = torch.zeros_like(labels_PT)
        elif rating_P.isnan().any():
            raise DataError(
                "the model requires a rating for each item of a history; add the ratings"
            )
        nobody_P = torch.zeros(len(item_P), dtype=torch.int32)
        rows = Columns(nobody_P, item_P.int(), labels_PT)
        return bag_entries(rows, replace(schema, item=known), self.levels).row.long()


def _repeated(raw: Sequence[RawId], items: Sequence[int]) -> list[RawId]:
    """The ids whose item, -1 for none, was there before; each once."""
    seen: set[int] = set()
    again: dict[int, RawId] = {}
    for one, item in zip(raw, items, strict=True):
        if item in seen:
            again.setdefault(item, one)
        elif item >= 0:
            seen.add(item)
    return [*again.values()]


def _sums(table_RD: Tensor, entries: Sequence[Entries]) -> Tensor:
    """Weighted sums (U, D) of rows."""
    size_U = torch.tensor([len(one) for one in entries])
    flat = [pair for one in entries for pair in one]
    row_P = torch.tensor([row for row, _ in flat], dtype=torch.long)
    weight_P = torch.tensor([weight for _, weight in flat], dtype=table_RD.dtype)
    bags = (row_P, table_RD, size_U.cumsum(0) - size_U)
    return F.embedding_bag(*bags, mode="sum", per_sample_weights=weight_P)
