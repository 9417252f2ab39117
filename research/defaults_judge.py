"""How far a model is ahead of what needs no model on a split, and how sure that is.

Axes: N labelled rows of a task, P positive and Q negative ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from recsys_moe.artifact.baselines import baselines, missed
from recsys_moe.artifact.evaluate import data_of, open_split
from recsys_moe.artifact.evaluation import evaluate_model
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.config.past import Past
from recsys_moe.data.batches import EvalBatches
from recsys_moe.data.columns import Rows
from recsys_moe.data.streaming import labelled
from recsys_moe.inference.evaluation.ranking import evaluate_ranking
from recsys_moe.kinds import by_task, kind_of
from recsys_moe.kinds.averages import totals, user_item_means
from recsys_moe.model.request import Request
from recsys_moe.schema import Schema, Task

WITHIN = 2 * 1.96
"""Standard errors in a 95% interval."""


class Ahead(NamedTuple):
    """A figure of a model, of what needs no model, by how much the first is better on the same
    rows or lists, and the standard error of that."""

    own: float
    bound: float
    by: float
    error: float


class Scored:
    """Keeps the rows of a split with their logits; one of `apart` of `evaluate_model`."""

    def __init__(self, schema: Schema) -> None:
        self.kinds = [kind_of(task) for task in schema.tasks]
        self.parts: list[tuple[Tensor, ...]] = []

    def update(self, request: Request, scored: tuple[Tensor, Tensor]) -> None:
        logits = torch.stack([one.float() for one in by_task(scored[0], self.kinds)], 1)
        self.parts.append((request.user, request.item, logits, scored[1]))

    def report(self) -> dict[str, Any]:
        return {}

    def of(self, task: int) -> tuple[np.ndarray, ...]:
        """User, item, logit and label of the rows with a label. (N,) each"""
        user, item, logits, labels = (torch.cat(part) for part in zip(*self.parts, strict=True))
        known = ~labels[:, task].isnan()
        columns = user.long(), item.long(), logits[:, task], labels[:, task].double()
        return tuple(column[known].numpy() for column in columns)


def judge(run: Path, data: Path, split: str = "test") -> tuple[dict[str, Any], dict[str, Ahead]]:
    """`evaluate` with baselines, and `auc`, `mse` and `ndcg` as far as the tasks have them.

    AUC of the first binary task beside popularity, MSE of the first regression beside user and item
    means, NDCG@10 beside popularity. Where the data keep the order of events, lists are those
    before each user's last relevant row, as models that read events predict what is next; else
    each user has one.
    """
    artifact = load_artifact(run)
    _, schema = data_of(run, artifact, data)
    rows = open_split(artifact, data, schema, split)
    batches, scored = EvalBatches(rows, artifact.config.eval_rows, by_user=True), Scored(schema)
    found = evaluate_model(
        artifact.model, batches, schema, artifact.config, split=split, apart=[scored]
    )
    train = open_split(artifact, data, schema, "train", past=None)
    found["baselines"] = baselines(train, batches.rows, schema)
    found["missed"] = [line.partition(": ")[2] for line in missed(found)]
    ahead = {
        name: of(*scored.of(first)[2:], bounds(schema, first, train)(*scored.of(first)[:2]))
        for name, first, of in first_tasks(schema)
    }
    if any(kind_of(task).has_positives for task in schema.tasks):
        past = Past(lists="last" if schema.events else None)
        ahead["ndcg"] = of_lists(evaluate_ranking(run, split, data, past=past))
    return found, ahead


def first_tasks(schema: Schema) -> Iterator[tuple[str, int, Callable[..., Ahead]]]:
    """Figure, place of the first task that has it, and what judges its rows."""
    for kind, name, of in (("binary", "auc", of_auc), ("regression", "mse", of_mse)):
        for first in [n for n, task in enumerate(schema.tasks) if task.kind == kind][:1]:
            yield name, first, of


def bounds(schema: Schema, task: int, train: Rows) -> Callable[..., np.ndarray]:
    """Users and items (N,) -> what scores them without a model (N,)."""
    user, item = _bound(schema.tasks[task], partial(labelled, train, task=task), schema)
    return lambda user_N, item_N: user[user_N] + item[item_N]


def _bound(task: Task, train: Any, schema: Schema) -> tuple[np.ndarray, np.ndarray]:
    """What scores a row without a model: a number of its user plus a number of its item."""
    sizes = schema.user.size + 1, schema.item.size + 1
    if task.kind == "binary":
        positive = totals(((row.item, row.label) for row in train()), sizes[1])
        return np.zeros(sizes[0]), positive.numpy()
    mean = schema.labels["train"][task.name]["mean"]
    user, item = user_item_means(train, sizes, mean)
    return user.numpy() + mean, item.numpy()


def of_auc(own_N: np.ndarray, label_N: np.ndarray, bound_N: np.ndarray) -> Ahead:
    """By DeLong, DeLong and Clarke-Pearson 1988, https://doi.org/10.2307/2531595: an AUC is a mean
    over positives of the share of negatives below each, and the same the other way round."""
    own, bound = (_placements(score_N, label_N == 1) for score_N in (own_N, bound_N))
    difference = [a - b for a, b in zip(own, bound, strict=True)]
    error = float(np.sqrt(sum(one.var(ddof=1) / len(one) for one in difference)))
    aucs = float(own[0].mean()), float(bound[0].mean())
    return Ahead(*aucs, aucs[0] - aucs[1], error)


def _placements(score_N: np.ndarray, positive_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Share of negatives below each positive (P,) and of positives above each negative (Q,)."""
    above, below = (pd.Series(score_N[mask]) for mask in (positive_N, ~positive_N))
    rank_N = pd.Series(score_N).rank().to_numpy()
    own_P = (rank_N[positive_N] - above.rank().to_numpy()) / len(below)
    own_Q = (rank_N[~positive_N] - below.rank().to_numpy()) / len(above)
    return own_P, 1 - own_Q


def of_mse(own_N: np.ndarray, label_N: np.ndarray, bound_N: np.ndarray) -> Ahead:
    """Rows are taken as independent."""
    own, bound = ((score_N - label_N) ** 2 for score_N in (own_N, bound_N))
    error = float((bound - own).std(ddof=1) / np.sqrt(len(own)))
    return Ahead(float(own.mean()), float(bound.mean()), float((bound - own).mean()), error)


def of_lists(lists: Mapping[str, Any]) -> Ahead:
    """Of what `evaluate --ranking` says; the error is from its bootstrap over users."""
    popular = lists["baselines"]["popularity"]
    low, high = popular["ahead"]["ndcg"]
    by = lists["ndcg"] - popular["ndcg"]
    return Ahead(lists["ndcg"], popular["ndcg"], by, (high - low) / WITHIN)
