"""What a matrix of scores reaches on a split: by the very code of `evaluate --ranking`.

Axes: U users, I items, N rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.accuracy.rows import Part, Scores, TrainingRows
from recsys_moe.artifact.metrics import BinaryMetrics, RegressionMetrics
from recsys_moe.data.columns import load_columns
from recsys_moe.errors import DataError
from recsys_moe.inference.ranking import LENGTH, top_lists
from recsys_moe.inference.ranking_figures import described
from recsys_moe.inference.ranking_rows import Wanted, ranking_rows
from recsys_moe.schema import Schema

MOST_ROWS = 10**9
"""All rows are held in memory."""


class Judge:
    """The splits of a prepared folder with a binary task and, perhaps, one of regression."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.schema = folder, Schema.load(folder)
        kinds = [task.kind for task in self.schema.tasks]
        if kinds.count("binary") != 1 or kinds.count("regression") != 1:
            raise DataError(f"{folder}: peers need one binary and one regression task, got {kinds}")
        self.watch, self.rating = kinds.index("binary"), kinds.index("regression")

    def training_rows(self) -> TrainingRows:
        """All that a peer is told; of the test split nothing."""
        sizes = self.schema.user.size, self.schema.item.size
        return TrainingRows(self.part("train"), self.part("val"), *sizes)

    def part(self, split: str) -> Part:
        """Rows of known users and items."""
        columns = load_columns(self.folder, self.schema, split)
        user_N, item_N = columns.user.long(), columns.item.long()
        known_N = (user_N < self.schema.user.size) & (item_N < self.schema.item.size)
        labels = (columns.labels[known_N, task].numpy() for task in (self.watch, self.rating))
        return Part(user_N[known_N].numpy(), item_N[known_N].numpy(), *labels)

    def figures(
        self, scores: Scores, split: str, *, probabilities: bool
    ) -> dict[str, float | None]:
        """AUC, BCE (of `probabilities`, whose logits the scores then are), MSE, the task-weighted
        loss where both tasks have one, and the figures of lists of 10; None where a peer has none.
        """
        found: dict[str, float | None] = {}
        if scores.watch is not None:
            watch_UI = torch.from_numpy(np.ascontiguousarray(scores.watch))
            found |= self._binary(watch_UI, split, probabilities) | self._lists(watch_UI, split)
        if scores.rating is not None:
            found["mse"] = self._mse(torch.from_numpy(scores.rating), split)
        return {**found, **self.loss(found)}

    def loss(self, found: dict[str, float | None]) -> dict[str, float]:
        """The task-weighted loss, by the weights of schema.json, where both tasks have one."""
        bce, mse = found.get("bce"), found.get("mse")
        if bce is None or mse is None:
            return {}
        watch, rating = (self.schema.tasks[n].weight for n in (self.watch, self.rating))
        return {"loss": watch * bce + rating * mse}

    def _binary(self, watch_UI: Tensor, split: str, probabilities: bool) -> dict[str, float | None]:
        metrics = BinaryMetrics()
        user_N, item_N, label_N, _ = self._rows(split)
        metrics.update(of_rows(watch_UI, user_N, item_N), label_N)
        found = metrics.compute()
        return {"auc": found["auc"], "bce": found["bce"] if probabilities else None}

    def _mse(self, rating_UI: Tensor, split: str) -> float | None:
        metrics = RegressionMetrics()
        user_N, item_N, _, label_N = self._rows(split)
        metrics.update(of_rows(rating_UI, user_N, item_N), label_N)
        return metrics.compute()["mse"]

    def _rows(self, split: str) -> tuple[Tensor, ...]:
        """User, item, label of both tasks, of all rows."""
        columns = load_columns(self.folder, self.schema, split)
        labels = (columns.labels[:, task] for task in (self.watch, self.rating))
        return columns.user.long(), columns.item.long(), *labels

    def _lists(self, watch_UI: Tensor, split: str) -> dict[str, float | None]:
        wanted = Wanted(self.watch)
        rows = ranking_rows(self.folder, self.schema, split, wanted=wanted, most=MOST_ROWS)
        asked = rows.labelled
        lists = top_lists(lambda user_U: watch_UI[user_U], rows, LENGTH)
        found = described(lists, of_rows(watch_UI, asked.user, asked.item), rows)
        names = ("ndcg", "recall", "mrr", "hit_rate", "gauc", "coverage", "popularity")
        return {name: found[name] for name in names}


def of_rows(scores_UI: Tensor, user_N: Tensor, item_N: Tensor) -> Tensor:
    """The scores of pairs (N,); an id that training does not know counts as the average one."""
    users, items = scores_UI.shape
    item_mean_I = torch.cat([scores_UI.mean(0), scores_UI.mean()[None]])
    user_mean_U = torch.cat([scores_UI.mean(1), scores_UI.mean()[None]])
    known_user_N, known_item_N = user_N < users, item_N < items
    result_N = torch.where(known_user_N, user_mean_U[user_N], item_mean_I[item_N])
    both_N = known_user_N & known_item_N
    result_N[both_N] = scores_UI[user_N[both_N], item_N[both_N]]
    return result_N
