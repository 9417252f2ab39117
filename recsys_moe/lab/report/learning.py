"""Losses and metrics per epoch, and the consistency of the routing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from recsys_moe.artifact.epoch_metrics import Numbers
from recsys_moe.artifact.monitor import BY_LOSS, LOSS, Monitor
from recsys_moe.artifact.routing_history import RoutingHistory
from recsys_moe.errors import DataError
from recsys_moe.kinds import KINDS, metric_title
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
    """The one that the run keeps, the best by `monitor`."""
    monitor: str = LOSS
    factors: dict[str, list[float]] = field(default_factory=dict)
    """Per task, what `tasks.weighting` multiplied its loss by, if it learns."""
    trained_by: str = ""
    """Task weights of the training loss in words, where they are not the validation loss's."""


@dataclass(frozen=True)
class Consistency:
    """Share of rows that keep their top expert from one recorded epoch to the next."""

    epochs: list[int]
    """The later epoch of each pair."""
    same: dict[str, list[float]]
    """Per task the share of the sampled rows with the same top expert in both epochs."""
    chance: dict[str, list[float]]
    """Expected share of two independent routings with these loads."""
    rows: int

    @property
    def last(self) -> dict[str, float]:
        """Per task the share in the last epoch."""
        return {task: same[-1] for task, same in self.same.items()}


def learning_curves(
    epochs: Mapping[int, Numbers],
    tasks: tuple[Task, ...],
    monitor: Monitor = BY_LOSS,
    trained_by: str = "",
) -> LearningCurves:
    """Curves of at least one epoch; a metric that is undefined in an epoch is NaN there."""

    def column(name: str) -> list[float]:
        return [math.nan if (value := row.get(name)) is None else value for row in epochs.values()]

    names = {task.name: KINDS[task.kind].headline for task in tasks}
    monitored = dict(zip(epochs, column(monitor.column), strict=True))
    return LearningCurves(
        epochs=list(epochs),
        train_loss=column("train/loss"),
        val_loss=column("val/loss"),
        metrics={
            f"{task} {metric_title(metric)}": column(f"val/{task}/{metric}")
            for task, metric in names.items()
        },
        best_epoch=monitor.best_epoch(monitored) or next(iter(epochs)),
        factors={
            f"{task} factor": column(name)
            for task in names
            if any((name := f"train/{task}/factor") in row for row in epochs.values())
        },
        monitor=monitor.name,
        trained_by=trained_by,
    )


def consistency(history: RoutingHistory, tasks: tuple[Task, ...]) -> Consistency:
    """Pairs of successive epochs; empty with fewer than two."""
    if history.top_RTN.shape[1] != len(tasks):
        raise DataError(
            f"routing.safetensors must have the {len(tasks)} tasks of the model, "
            f"got {history.top_RTN.shape[1]}; delete it"
        )
    top_RTN = history.top_RTN.long() + 1  # -1, nobody, counts as one
    size = 1 + int(top_RTN.max()) if top_RTN.numel() else 1
    share_RTE = torch.stack([F.one_hot(top_TN, size).double().mean(1) for top_TN in top_RTN])
    same_RT = (top_RTN[1:] == top_RTN[:-1]).double().mean(-1)
    chance_RT = (share_RTE[1:] * share_RTE[:-1]).sum(-1)
    names = [task.name for task in tasks]
    same, chance = (dict(zip(names, x_RT.T.tolist(), strict=True)) for x_RT in (same_RT, chance_RT))
    return Consistency(history.epoch_R[1:].tolist(), same, chance, len(history.row_N))
