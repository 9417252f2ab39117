"""What to try where a task is behind its baselines, by what its run has shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from recsys_moe.artifact.baselines import missed
from recsys_moe.artifact.epoch_metrics import Numbers
from recsys_moe.config.settings import Config
from recsys_moe.kinds import HIGHER_IS_BETTER, KINDS, metric_title
from recsys_moe.schema import Schema, Task

EARLY = 8
"""Epochs of which the first is the best: what follows is memorised."""


class _Behind(NamedTuple):
    """A metric of a task that does not beat a baseline."""

    task: Task
    metric: str
    bound: float
    by_epoch: dict[int, float]

    @property
    def is_higher(self) -> bool:
        return self.metric in HIGHER_IS_BETTER

    @property
    def best(self) -> int:
        return (max if self.is_higher else min)(self.by_epoch, key=self.by_epoch.__getitem__)


def remedies(
    result: dict[str, Any], epochs: Mapping[int, Numbers], config: Config, schema: Schema
) -> Iterator[str]:
    """A line per task that does not beat one of the baselines of `result`.

    `epochs`: the numbers of metrics.csv by epoch.
    """
    for task in schema.tasks:
        behind = _behind(result, epochs, task)
        counts = schema.labels.get("train", {}).get(task.name, {})
        if behind and (found := KINDS[task.kind].advice_behind(counts) or _of_run(behind, config)):
            yield f"{task.name}: {found}"


def _behind(result: dict[str, Any], epochs: Mapping[int, Numbers], task: Task) -> _Behind | None:
    """The first metric that a baseline is not beaten in."""
    for name, metrics in result["baselines"].get(task.name, {}).items():
        for metric, bound in metrics.items():
            if any(missed({**result, "baselines": {task.name: {name: {metric: bound}}}})):
                column = f"val/{task.name}/{metric}"
                numbers = {epoch: row.get(column) for epoch, row in epochs.items()}
                by_epoch = {epoch: one for epoch, one in numbers.items() if one is not None}
                return _Behind(task, metric, bound, by_epoch)
    return None


def _of_run(behind: _Behind, config: Config) -> str:
    """By when the metric was best."""
    if not behind.by_epoch:
        return ""
    name, best, last = behind.task.name, behind.best, max(behind.by_epoch)
    value = behind.by_epoch[best]
    figure = f"{metric_title(behind.metric)} {value:.4f}"
    if value > behind.bound if behind.is_higher else value < behind.bound:
        return f"epoch {best} had {figure}; try trainer.monitor={name}/{behind.metric}"
    if best * EARLY <= last:
        rate = f"{config.optim.lr / 4:.2g}"
        return f"epoch {best} of {last} had the best {figure}; try optim.lr={rate}"
    if best == last == config.trainer.max_epochs:
        return f"epoch {last}, the last, had the best {figure}; try --max-epochs {2 * last}"
    if config.model.user_ids and not config.model.biases:
        return "try model.biases=true, which starts at the means of users and items"
    return ""
