"""Permutation importance (Breiman 2001) of features and item bags.

One part of the vectors of the known users (items) of the rows is shuffled among them, and the loss
of each task is measured again. Axes: N rows, U distinct users or items of the rows, P entries, D
width of the embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor

from recsys_moe.artifact.bags import has_rows, pooled, rows_of
from recsys_moe.artifact.evaluation import Evaluation, add_rows
from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.artifact.routing_history import take_rows
from recsys_moe.config.encoders import chosen_context, chosen_features
from recsys_moe.data.batches import EvalBatches
from recsys_moe.data.columns import Rows
from recsys_moe.data.entries import entries_of_table, table_rows
from recsys_moe.data.rows import Columns
from recsys_moe.inference.attribution.features import LeftOut
from recsys_moe.inference.cold_start.model import with_cold_users
from recsys_moe.inference.cold_start.whom import ENTITIES
from recsys_moe.kinds import KINDS
from recsys_moe.lab.report.run import Progress
from recsys_moe.lab.report.sample import choose_rows
from recsys_moe.seeds import stream_seed

ROWS, SHUFFLES = 20_000, 5


@dataclass(frozen=True)
class Importance:
    """Increase of each task's loss when a part of the vectors is shuffled."""

    split: str
    rows: int
    split_rows: int
    """Of the whole split."""
    shuffles: int
    seed: int
    metric: dict[str, str]
    """Per task the loss: bce or mse."""
    before: dict[str, float]
    rise: dict[str, dict[str, list[float]]]
    """Per task and part the loss minus that before, of each shuffle."""

    def mean(self, task: str, part: str) -> float:
        return sum(self.rise[task][part]) / self.shuffles

    def spread(self, task: str, part: str) -> float:
        """Standard deviation over the shuffles."""
        return float(torch.tensor(self.rise[task][part]).double().std())

    def most(self, task: str) -> str:
        """The part with the largest rise."""
        return max(self.rise[task], key=lambda part: self.mean(task, part))

    @property
    def parts(self) -> list[str]:
        """The largest rise first, in units of the loss before, of the task where it is largest."""
        return sorted(next(iter(self.rise.values())), key=self._weight, reverse=True)

    def _weight(self, part: str) -> float:
        return max(self.mean(task, part) / (self.before[task] or 1.0) for task in self.rise)


class _Part(NamedTuple):
    """Of the vectors of the users, or of the items, of some rows."""

    name: str
    entity: str
    added_UD: Tensor
    place_N: Tensor
    """Of the user of each row in U; -1 for an out-of-vocabulary one."""


def importance(
    artifact: Artifact, rows: Rows, split: str, *, seed: int, progress: Progress, most: int = ROWS
) -> Importance | None:
    """On at most `most` rows; None for a model of ids alone, or rows without labels of a task."""
    row_N = choose_rows(len(rows), most, artifact.config.model.eval_rows, seed)
    columns = take_rows(rows, row_N)
    parts = [*_parts(artifact, columns)] if artifact.encoders else []
    parts += _contexts(artifact, columns)
    before = _losses(artifact, columns, {}) if parts else {}
    if not parts or None in before.values():
        return None
    rise: dict[str, dict[str, list[float]]] = {task: {} for task in before}
    times = SHUFFLES * len(parts)
    with progress(f"shuffling features on {split}", times * len(columns)) as done:
        for part in parts:
            generator = torch.Generator().manual_seed(stream_seed(seed, f"importance {part.name}"))
            for _ in range(SHUFFLES):
                order_U = torch.randperm(len(part.added_UD), generator=generator)
                for task, loss in _losses_after(artifact, columns, part, order_U).items():
                    rise[task].setdefault(part.name, []).append(loss - before[task])
                done(len(columns))
    metric = {task.name: KINDS[task.kind].loss_metric for task in artifact.schema.tasks}
    sizes = len(columns), len(rows)
    return Importance(split, *sizes, SHUFFLES, seed, metric=metric, before=before, rise=rise)


def _losses_after(
    artifact: Artifact, columns: Columns, part: _Part, order_U: Tensor
) -> dict[str, float]:
    """With a part in another order of its users, items or, of a context feature, rows."""
    if part.entity == "context" and columns.context is not None:
        place = [one.name for one in chosen_context(artifact.config, artifact.schema)]
        context_NC = columns.context.clone()
        context_NC[:, place.index(part.name)] = part.added_UD[order_U, 0]
        return _losses(artifact, replace(columns, context=context_NC), {})
    change_UD = part.added_UD[order_U] - part.added_UD
    change_ND = F.pad(change_UD, (0, 0, 0, 1))[part.place_N]  # -1: nothing
    return _losses(artifact, columns, {part.entity: change_ND})


def _losses(artifact: Artifact, columns: Columns, added: dict[str, Tensor]) -> dict[str, float]:
    """Of each task, with something added to the vectors of the rows. (N, D) by entity"""
    config, schema = artifact.config, artifact.schema
    evaluation = Evaluation(schema, config)
    start = 0
    for batch in EvalBatches(columns, config.eval_rows):
        stop = start + len(batch.labels)
        nothing_BD = torch.zeros(stop - start, config.model.embedding_dim)
        left = [
            -added[entity][start:stop] if entity in added else nothing_BD for entity in ENTITIES
        ]
        model = with_cold_users(artifact.model, LeftOut(None, *left))
        add_rows(evaluation, model, [batch], config)
        start = stop
    tasks = evaluation.result("")["tasks"]
    return {task.name: tasks[task.name][KINDS[task.kind].loss_metric] for task in schema.tasks}


def _parts(artifact: Artifact, columns: Columns) -> Iterator[_Part]:
    """Features and histories, of users and of items."""
    entities = (columns.user, artifact.schema.user.size), (columns.item, artifact.known_items)
    for entity, (index_N, size) in zip(ENTITIES, entities, strict=True):
        index_U = index_N[index_N < size].unique().long()
        place_N = torch.where(index_N < size, torch.searchsorted(index_U, index_N.long()), -1)
        added = dict(_features(artifact, entity, index_U))
        if has_rows(artifact.history, entity):
            added[f"history of {entity}s"] = _histories(artifact, entity, index_U)
        for name, added_UD in added.items():
            yield _Part(name, entity, added_UD, place_N)


def _contexts(artifact: Artifact, columns: Columns) -> Iterator[_Part]:
    """The values of context features, one row after the other."""
    if columns.context is not None:
        for place, one in enumerate(chosen_context(artifact.config, artifact.schema)):
            value_N1 = columns.context[:, place : place + 1]
            yield _Part(one.name, "context", value_N1, torch.arange(len(value_N1)))


def _features(artifact: Artifact, entity: str, index_U: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What each feature adds to the vectors. (U, D)"""
    chosen = chosen_features(artifact.config, artifact.schema)[entity]
    if not chosen:
        return
    table = (artifact.users if entity == "user" else artifact.items).take(pa.array(index_U.numpy()))
    first, row_P, weight_P = entries_of_table(table, chosen, Path(f"{entity}s.parquet"))
    entity_P = torch.repeat_interleave(first.diff())
    table_RD, start = artifact.encoders[f"{entity}s.table_RD"], 0
    for feature in chosen:
        stop = start + table_rows([feature])
        mine_P = ((row_P >= start) & (row_P < stop)).nonzero()[:, 0]
        added_PD = weight_P[mine_P, None] * table_RD[row_P[mine_P].long()]
        nothing_UD = torch.zeros(len(index_U), table_RD.shape[1])
        yield feature.name, nothing_UD.index_add_(0, entity_P[mine_P], added_PD)
        start = stop


def _histories(artifact: Artifact, entity: str, index_U: Tensor) -> Tensor:
    """K |N(u)|^-1/2 sum of the rows of each user or item. (U, D)"""
    rows = [rows_of(artifact.history, entity, index) for index in index_U.tolist()]
    return pooled(artifact.encoders, entity, rows)
