"""Cold-start metrics at the end of training: do features improve scores of new users and items?

All items (or users) of the validation rows are scored as if they were new: with the OOV embedding
and their features, and with the OOV embedding alone. Axes: N users or items and the OOV id.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from recsys_moe.artifact.evaluation import Evaluation, add_rows
from recsys_moe.data.batches import EvalBatches
from recsys_moe.data.rows import Batch
from recsys_moe.kinds import HIGHER_IS_BETTER, KINDS
from recsys_moe.model.encoders.base import MATERIALIZED_AT_ONCE, Encoders, Entity
from recsys_moe.model.encoders.features import Features
from recsys_moe.model.recommender import Recommender
from recsys_moe.train.loader import RecDataModule

logger = logging.getLogger("recsys_moe.fit")

MOST_ROWS = 100_000
"""About so many validation rows; of more, evenly spaced batches are used."""
WAYS = ("with_features", "without")


def compare_new_ids(
    model: Recommender, encoders: Encoders | None, datamodule: RecDataModule
) -> dict[str, Any]:
    """`new_ids`: per entity with features, `user` or `item`, and task, the metric both ways.

    `model`: materialised from `encoders`. {} for a model without features. Logs a line per entity,
    a warning where features make the metric worse.
    """
    entities: dict[Entity, Features | None] = {}
    if encoders is not None:
        entities = {"user": encoders.users, "item": encoders.items}
    found = {s: _compared(model, s, f, datamodule) for s, f in entities.items() if f is not None}
    for entity, tasks in found.items():
        _say(entity, tasks)
    return {"new_ids": found} if found else {}


def _compared(
    model: Recommender, entity: Entity, features: Features, datamodule: RecDataModule
) -> dict[str, dict[str, Any]]:
    schema, config = datamodule.schema, datamodule.config
    judged = []
    for told in (features, None):
        evaluation = Evaluation(schema, config)
        with _all_new(model, entity, told):
            add_rows(evaluation, model, _thinned(datamodule.val_batches()), config)
        judged.append(evaluation.result("val")["tasks"])
    found: dict[str, dict[str, Any]] = {}
    for task in schema.tasks:
        metric, (first, second) = KINDS[task.kind].headline, (one[task.name] for one in judged)
        both = dict(zip(WAYS, (first[metric], second[metric]), strict=True))
        found[task.name] = {"metric": metric, "rows": first["rows"], **both}
    return found


def _thinned(batches: EvalBatches) -> Iterator[Batch]:
    step = max(1, -(-len(batches) * batches.batch_size // MOST_ROWS))
    return (batch for number, batch in enumerate(batches) if number % step == 0)


@contextmanager
def _all_new(model: Recommender, entity: Entity, features: Features | None) -> Iterator[None]:
    """Treat all ids of an entity as unknown: the OOV embedding and no bias."""
    weight, biases = getattr(model, f"{entity}_embedding").weight, model.biases
    name, kept = f"{entity}_{entity[0].upper()}T", weight.data
    weight.data = _vectors(kept, features)
    if biases is not None:
        own = getattr(biases, name)
        setattr(biases, name, torch.zeros_like(own))
    try:
        yield
    finally:
        weight.data = kept
        if biases is not None:
            setattr(biases, name, own)


@torch.no_grad()
def _vectors(table_ND: torch.Tensor, features: Features | None) -> torch.Tensor:
    """Vectors of new ids: the OOV embedding plus that of their features, if any."""
    made_ND = table_ND[-1:].repeat(len(table_ND), 1)
    if features is not None:
        for index_U in torch.arange(len(made_ND)).split(MATERIALIZED_AT_ONCE):
            made_ND[index_U] += features.of_entities(index_U)
    return made_ND


def _say(entity: Entity, tasks: dict[str, dict[str, Any]]) -> None:
    """Warn where features make a metric worse by more than about one standard error: a share of
    1 / sqrt(rows), as of an AUC near 1/2 with half positives and an MSE of normal errors."""
    parts, is_worse = [], False
    for task, one in tasks.items():
        told, bare = (one[way] for way in WAYS)
        if told is None or bare is None:
            continue
        parts.append(f"{task} {one['metric']} {told:.4f} with their features, {bare:.4f} without")
        loss = bare - told if one["metric"] in HIGHER_IS_BETTER else told - bare
        is_worse |= loss > bare / math.sqrt(one["rows"])
    line = f"new {entity}s: {'; '.join(parts)}"
    if is_worse:
        logger.warning("%s: features make cold start worse; raise data.features_only_rate", line)
    elif parts:
        logger.info(line)
