"""What a matrix of scores reaches on a split: by the very code of `evaluate --ranking`.

Axes: U users, I items, N rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recsys_moe.data.columns import load_columns
from recsys_moe.errors import DataError
from recsys_moe.inference.evaluation.ranking import LENGTH, Logits, top_lists
from recsys_moe.inference.evaluation.ranking_metrics import PerUser
from recsys_moe.inference.evaluation.ranking_report import described, list_figures
from recsys_moe.inference.evaluation.ranking_rows import RankingRows, ranking_rows
from recsys_moe.inference.evaluation.ranking_wanted import Wanted
from recsys_moe.kinds.binary import BinaryMetrics
from recsys_moe.kinds.regression import RegressionMetrics
from recsys_moe.schema import Schema
from research.accuracy.rows import Part, Scores, TrainingRows

MOST_ROWS = 10**9
"""All rows are held in memory."""


class Answers(NamedTuple):
    """What one recommender says, None where it does not do the task."""

    watch: Logits | None
    """Users (U,) -> what their items are ranked by (U, I)."""
    rating: Callable[[Tensor, Tensor], Tensor] | None
    """Users and items (N,) -> ratings (N,)."""


class Judge:
    """The splits of a prepared folder with a binary task and, perhaps, one of regression."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.schema = folder, Schema.load(folder)
        kinds = [task.kind for task in self.schema.tasks]
        if kinds.count("binary") != 1 or kinds.count("regression") != 1:
            raise DataError(f"{folder}: peers need one binary and one regression task, got {kinds}")
        self.watch, self.rating = kinds.index("binary"), kinds.index("regression")

    @property
    def data(self) -> str:
        """Which data these are, in a finished row."""
        schema = (self.folder / "schema.json").read_bytes()
        return f"{self.schema.name} {hashlib.sha256(schema).hexdigest()[:12]}"

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

    def per_user(self, answers: Answers, split: str) -> dict[str, PerUser]:
        """NDCG of lists of 10 and squared error of ratings, by user index, as far as answered."""
        found: dict[str, PerUser] = {}
        if answers.watch is not None:
            rows = self._ranking_rows(split)
            found["ndcg"] = list_figures(top_lists(answers.watch, rows, LENGTH), rows)["ndcg"]
        if answers.rating is not None:
            user_N, item_N, _, label_N = self._rows(split)
            user_N, item_N, label_N = (x[~label_N.isnan()] for x in (user_N, item_N, label_N))
            error_N = (answers.rating(user_N, item_N) - label_N).square()
            found["mse"] = mean_per_user(user_N, error_N, self.schema.user.size + 1)
        return found

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
        rows = self._ranking_rows(split)
        asked = rows.labelled
        lists = top_lists(lambda users: watch_UI[users.user], rows, LENGTH)
        found = described(lists, of_rows(watch_UI, asked.user, asked.item), rows)
        names = ("ndcg", "recall", "mrr", "hit_rate", "gauc", "coverage", "popularity")
        return {name: found[name] for name in names}

    def _ranking_rows(self, split: str) -> RankingRows:
        wanted = Wanted(self.watch)
        return ranking_rows(self.folder, self.schema, split, wanted=wanted, most=MOST_ROWS)


def answers_of(scores: Scores) -> Answers:
    """Those of a matrix of scores."""
    watch = None if scores.watch is None else torch.from_numpy(np.ascontiguousarray(scores.watch))
    rating = None if scores.rating is None else torch.from_numpy(scores.rating)
    return Answers(
        watch=None if watch is None else lambda users: watch[users.user],
        rating=None if rating is None else partial(of_rows, rating),
    )


def mean_per_user(user_N: Tensor, value_N: Tensor, users: int) -> PerUser:
    """The mean of each user's rows, which counts as often as it has rows. (users,)"""
    rows_U = torch.bincount(user_N, minlength=users).double()
    sum_U = torch.zeros_like(rows_U).index_add_(0, user_N, value_N.double())
    return PerUser(sum_U / rows_U.clamp(min=1), rows_U)


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
