"""Metrics of rows whose user and item training knows, beside those of rows where it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from recsys_moe.artifact.metrics import METRICS
from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.lab.report.run import Sample


@dataclass(frozen=True)
class Group:
    """Rows of one kind."""

    who: str
    rows: int
    tasks: dict[str, dict[str, Any]]
    """Metrics by task; None where they are undefined."""


def warm_and_cold(artifact: Artifact, sample: Sample) -> list[Group]:
    """Groups that have rows: warm first; one alone where training knows everybody."""
    new_user_N = sample.columns.user == artifact.schema.user.size
    new_item_N = sample.columns.item == artifact.schema.item.size
    kinds = {
        "both known to training": ~new_user_N & ~new_item_N,
        "user unseen": new_user_N & ~new_item_N,
        "item unseen": ~new_user_N & new_item_N,
        "both unseen": new_user_N & new_item_N,
    }
    found = {who: is_in_N for who, is_in_N in kinds.items() if is_in_N.any()}
    return [Group(who, int(i.sum()), _metrics(artifact, sample, i)) for who, i in found.items()]


def _metrics(artifact: Artifact, sample: Sample, is_in_N: Tensor) -> dict[str, dict[str, Any]]:
    tasks = {}
    for number, task in enumerate(artifact.schema.tasks):
        metrics = METRICS[task.kind]()
        columns = sample.logits_NT[is_in_N, number], sample.columns.labels[is_in_N, number]
        metrics.update(*columns)
        computed = metrics.compute()
        tasks[task.name] = {name: computed[name] for name in metrics.names}
    return tasks
