"""How training went: losses and metrics per epoch, and how steady the routing became."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from recsys_moe.artifact.routing_history import RoutingHistory
from recsys_moe.errors import DataError
from recsys_moe.model.tasks import KINDS
from recsys_moe.schema import Task


@dataclass(frozen=True)
class LearningCurves:
    """Columns of metrics.csv by epoch."""

    epochs: list[int]
    train_loss: list[float]
    val_loss: list[float]
    metrics: dict[str, list[float]]
    """`watch AUC` and the like, on the validation split."""
    best_epoch: int
    """With the lowest validation loss."""


@dataclass(frozen=True)
class Consistency:
    """How many rows keep their top expert from one recorded epoch to the next."""

    epochs: list[int]
    """The later epoch of each pair."""
    same: dict[str, list[float]]
    """Per task the share of the sampled rows with the same top expert in both epochs."""
    chance: dict[str, list[float]]
    """What to expect of two routings with these loads that know nothing of each other."""
    rows: int


def read_epochs(path: Path) -> list[dict[str, float]]:
    """Rows of metrics.csv by epoch; the last one counts where an epoch stands twice.

    Raises DataError when it is damaged.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(stream)]
        by_epoch = list({row["epoch"]: row for row in rows}.values())
        if not all({"train/loss", "val/loss"} <= row.keys() for row in by_epoch):
            raise ValueError("it must have the columns train/loss and val/loss in every row")
    except (KeyError, TypeError, ValueError, AttributeError, csv.Error) as error:
        raise DataError(f"{path} is damaged: {error}; train the run again") from None
    return by_epoch


def learning_curves(rows: list[dict[str, float]], tasks: tuple[Task, ...]) -> LearningCurves:
    """Curves of at least one epoch; a metric that is undefined in an epoch is NaN there."""
    names = {task.name: KINDS[task.kind].metric for task in tasks}
    losses = [row["val/loss"] for row in rows]
    return LearningCurves(
        epochs=[int(row["epoch"]) for row in rows],
        train_loss=[row["train/loss"] for row in rows],
        val_loss=losses,
        metrics={
            f"{task} {metric.upper()}": [row.get(f"val/{task}/{metric}", math.nan) for row in rows]
            for task, metric in names.items()
        },
        best_epoch=int(rows[losses.index(min(losses))]["epoch"]),
    )


def consistency(history: RoutingHistory, tasks: tuple[Task, ...]) -> Consistency:
    """Pairs of successive epochs; empty with fewer than two."""
    if history.top_RTN.shape[1] != len(tasks):
        raise DataError(f"routing.safetensors is of {history.top_RTN.shape[1]} tasks; remove it")
    pairs = list(zip(history.top_RTN, history.top_RTN[1:], strict=False))
    same = {
        task.name: [(old[t] == new[t]).double().mean().item() for old, new in pairs]
        for t, task in enumerate(tasks)
    }
    chance = {
        task.name: [_agreement_by_chance(old[t], new[t]) for old, new in pairs]
        for t, task in enumerate(tasks)
    }
    return Consistency(history.epoch_R[1:].tolist(), same, chance, len(history.row_N))


def _agreement_by_chance(old_N: Tensor, new_N: Tensor) -> float:
    """sum_e p_e q_e with the shares p and q of the experts (-1, nobody, counts as one)."""
    size = int(max(old_N.max(), new_N.max())) + 2
    shares = [
        torch.bincount(top_N.long() + 1, minlength=size) / len(top_N) for top_N in (old_N, new_N)
    ]
    return float((shares[0].double() * shares[1].double()).sum())
