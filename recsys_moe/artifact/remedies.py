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
    def best(self) -> int:
        better = max if self.metric in HIGHER_IS_BETTER else min
        return better(self.by_epoch, key=self.by_epoch.__getitem__)

    @property
    def value(self) -> float:
        """Of the best epoch."""
        return self.by_epoch[self.best]

    @property
    def figure(self) -> str:
        """Of the best epoch, in words."""
        return f"{metric_title(self.metric)} {self.value:.4f}"


def remedies(
    result: dict[str, Any], epochs: Mapping[int, Numbers], config: Config, schema: Schema
) -> Iterator[str]:
    """A line per task that does not beat one of the baselines of `result`.

    `epochs`: the numbers of metrics.csv by epoch.
    """
    for task in schema.tasks:
        behind = _behind(result, epochs, task)
        counts = schema.labels.get("train", {}).get(task.name, {})
        if behind is None:
            continue
        of_labels = KINDS[task.kind].advice_behind(counts)
        of_run = _ahead(behind, result, epochs, config)
        of_run = of_run or ("" if of_labels else _of_run(behind, config))
        if found := "; ".join(filter(None, (of_run, of_labels))):
            yield f"{task.name}: {found}"


def _behind(result: dict[str, Any], epochs: Mapping[int, Numbers], task: Task) -> _Behind | None:
    """The first metric that a baseline is not beaten in."""
    for place, name, metric in _places(result):
        if place == task.name:
            bound = result["baselines"][place][name][metric]
            numbers = {n: row.get(f"val/{place}/{metric}") for n, row in epochs.items()}
            by_epoch = {n: one for n, one in numbers.items() if one is not None and one == one}
            return _Behind(task, metric, bound, by_epoch)
    return None


def _ahead(
    behind: _Behind, result: dict[str, Any], epochs: Mapping[int, Numbers], config: Config
) -> str:
    """Of an epoch in which the metric was ahead, and all that is ahead now was known to be so."""
    what = f"{behind.task.name}/{behind.metric}"
    if not behind.by_epoch or config.trainer.monitor == what:
        return ""
    if not _is_ahead(behind.metric, behind.value, behind.bound):
        return ""
    before = {**result, "tasks": _at(result["tasks"], epochs[behind.best])}
    compared = {(task, metric) for task, _, metric in _compared(result)}
    if not compared <= {(task, metric) for task, _, metric in _compared(before)}:
        return ""
    if not {*_places(before)} <= {*_places(result)}:
        return ""
    return f"epoch {behind.best} had {behind.figure}; try trainer.monitor={what}"


def _is_ahead(metric: str, value: float, bound: float) -> bool:
    return value > bound if metric in HIGHER_IS_BETTER else value < bound


def _at(tasks: dict[str, Any], numbers: Numbers) -> dict[str, Any]:
    """The metrics of an epoch; None where metrics.csv has none."""
    return {
        task: {name: numbers.get(f"val/{task}/{name}") for name in metrics}
        for task, metrics in tasks.items()
    }


def _compared(result: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Task, baseline and metric of each baseline that has a value beside one of the model."""
    for task, named in result["baselines"].items():
        for name, metrics in named.items():
            for metric, bound in metrics.items():
                if bound is not None and result["tasks"][task].get(metric) is not None:
                    yield task, name, metric


def _places(result: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Those that are not beaten."""
    for task, name, metric in _compared(result):
        bound = result["baselines"][task][name][metric]
        if any(missed({**result, "baselines": {task: {name: {metric: bound}}}})):
            yield task, name, metric


def _of_run(behind: _Behind, config: Config) -> str:
    """By when the metric was best."""
    if not behind.by_epoch:
        return ""
    best, last, figure = behind.best, max(behind.by_epoch), behind.figure
    if best * EARLY <= last:
        rate = f"{config.optim.lr / 4:.2g}"
        return f"epoch {best} of {last} had the best {figure}; try optim.lr={rate}"
    if best == last == config.trainer.max_epochs:
        more = f"--max-epochs {2 * last}, or more --minutes"
        return f"epoch {last}, the last, had the best {figure}; try {more}"
    if config.model.user_ids and not config.model.biases:
        return "try model.biases=true, which starts at the means of users and items"
    return ""
