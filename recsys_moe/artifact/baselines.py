"""Non-personalised baselines on the same rows.

Axes: N rows, U users, I items, both with one more for the OOV id.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from recsys_moe.artifact.metrics import BinaryMetrics, RegressionMetrics
from recsys_moe.data.columns import Rows
from recsys_moe.data.streaming import Labelled, labelled
from recsys_moe.schema import Schema, Task

DAMPING = 5
"""Rows with the mean label that are added to those of every user and item."""
HIGHER_IS_BETTER = ("auc",)

LabelledRows = Callable[[], Iterator[Labelled]]
Baselines = dict[str, dict[str, dict[str, float | None]]]
"""Per task and baseline the metrics; None as in the metrics of a model."""


def baselines(train: Rows, rows: Rows, schema: Schema) -> Baselines:
    """Fitted on `train`, evaluated on `rows`.

    Binary tasks: `popularity`, an item's positives in training, and `base_rate`, the training
    share of positives for all rows. Regressions: `mean`, and `user_item_mean`, the mean plus what
    the item and then the user deviate from it on damped average (as in Koren, Bell and Volinsky
    2009, "Matrix factorization techniques for recommender systems", with fixed damping).
    """
    parts = {"binary": _binary, "regression": _regression}
    return {
        task.name: parts[task.kind](
            partial(labelled, train, t), partial(labelled, rows, t), schema, task
        )
        for t, task in enumerate(schema.tasks)
    }


def missed(result: dict[str, Any]) -> Iterator[str]:
    """A line for every metric that does not beat its `baselines`."""
    for task, named in result.get("baselines", {}).items():
        for name, metrics in named.items():
            for metric, bound in metrics.items():
                own = result["tasks"][task][metric]
                if own is None or bound is None:
                    continue
                if not (own > bound if metric in HIGHER_IS_BETTER else own < bound):
                    yield not_beaten(result, f"{task} {metric.upper()}", own, name, bound=bound)


def not_beaten(result: dict[str, Any], figure: str, own: float, name: str, *, bound: float) -> str:
    """The warning that a metric of the split of `result` does not beat a baseline."""
    baseline = name.replace("_", " ")
    return (
        f"{result['split']}: {figure} {own:.4f} does not beat the {baseline} baseline {bound:.4f}"
    )


def _binary(
    train: LabelledRows, rows: LabelledRows, schema: Schema, task: Task
) -> dict[str, dict[str, float | None]]:
    popularity_I = _totals(((row.item, row.label) for row in train()), schema.item.size + 1)
    metrics = BinaryMetrics()
    for _, item_N, label_N, _ in rows():
        metrics.update(popularity_I[item_N].float(), label_N.float())
    judged = metrics.compute()
    counts = schema.counts("train", task.name, "positive", "labelled")
    bce = _base_rate_bce(counts["positive"], counts["labelled"], judged)
    return {"popularity": {"auc": judged["auc"]}, "base_rate": {"bce": bce}}


def _base_rate_bce(
    positive: float, labelled: float, judged: dict[str, float | int | None]
) -> float | None:
    """None if the training rows have one class only: the loss would be infinite."""
    rows, ones = judged["rows"] or 0, judged["positive"] or 0
    if not rows or not 0 < positive < labelled:
        return None
    parts = [(ones, positive), (rows - ones, labelled - positive)]
    return -sum(count / rows * math.log(known / labelled) for count, known in parts)


def _regression(
    train: LabelledRows, rows: LabelledRows, schema: Schema, task: Task
) -> dict[str, dict[str, float | None]]:
    mean = schema.counts("train", task.name, "mean")["mean"]
    item_I = _damped(((row.item, row.label - mean) for row in train()), schema.item.size + 1)
    left = ((row.user, row.label - mean - item_I[row.item]) for row in train())
    user_U = _damped(left, schema.user.size + 1)
    constant, sums = RegressionMetrics(), RegressionMetrics()
    for user_N, item_N, label_N, _ in rows():
        constant.update(torch.full_like(label_N, mean), label_N)
        sums.update(mean + user_U[user_N] + item_I[item_N], label_N)
    judged = {"mean": constant, "user_item_mean": sums}
    return {name: {"mse": metrics.compute()["mse"]} for name, metrics in judged.items()}


def _damped(values: Iterator[tuple[Tensor, Tensor]], size: int) -> Tensor:
    """Mean value of each index, damped by DAMPING zeros."""
    sums, counts = torch.zeros(size).double(), torch.full((size,), float(DAMPING)).double()
    for index_N, value_N in values:
        sums += torch.bincount(index_N, value_N, size)
        counts += torch.bincount(index_N, minlength=size)
    return sums / counts


def _totals(values: Iterator[tuple[Tensor, Tensor]], size: int) -> Tensor:
    return sum((torch.bincount(*value, size) for value in values), torch.zeros(size).double())
