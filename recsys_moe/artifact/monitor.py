"""The validation metric that selects the best epoch: `trainer.monitor`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from recsys_moe.errors import ConfigError, DataError
from recsys_moe.kinds import AFTER_TRAINING, HIGHER_IS_BETTER, KINDS
from recsys_moe.schema import Schema, Task

LOSS = "loss"
Direction = Literal["max", "min"]


class Monitor(NamedTuple):
    """A metric of the validation split and which way is better."""

    name: str
    """`loss`, the task-weighted one, or TASK/METRIC such as `watch/auc`."""
    direction: Direction

    @property
    def column(self) -> str:
        """Its name in metrics.csv, and for Lightning."""
        return f"val/{self.name}"

    @property
    def worst(self) -> float:
        return math.inf if self.direction == "min" else -math.inf

    def is_better(self, value: float, best: float) -> bool:
        """Strictly: of equal epochs the first one is kept. A NaN is never better."""
        return value < best if self.direction == "min" else value > best

    def best_epoch(self, values: Mapping[int, float]) -> int | None:
        """The epoch that a run with these values, in order, keeps; None where none is a number."""
        kept, best = None, self.worst
        for epoch, value in values.items():
            if self.is_better(value, best):
                kept, best = epoch, value
        return kept


BY_LOSS = Monitor(LOSS, "min")


def find_monitor(name: str, schema: Schema) -> Monitor:
    """Raises ConfigError, naming those that there are, unless the validation rows define it, and
    DataError where they have no label at all or schema.json does not count them."""
    known = {m.name: m for m in _monitors(schema.tasks) if _is_defined(m, schema)}
    if not known:
        raise DataError(
            "the validation rows must have labels, got none: no epoch can be selected; "
            "prepare the data with labels in the validation split"
        )
    if name not in known:
        raise ConfigError(
            f"trainer.monitor must be a metric of the validation rows, {', '.join(known)}, "
            f"got {name!r}"
        )
    return known[name]


def _monitors(tasks: Sequence[Task]) -> Iterator[Monitor]:
    yield BY_LOSS
    for task in tasks:
        for metric in KINDS[task.kind].metrics:
            if metric not in AFTER_TRAINING:
                direction: Direction = "max" if metric in HIGHER_IS_BETTER else "min"
                yield Monitor(f"{task.name}/{metric}", direction)


def _is_defined(monitor: Monitor, schema: Schema) -> bool:
    """False where no row has the label (for `loss`: any label), or the labels do not define it."""
    task, _, metric = monitor.name.rpartition("/")
    counted = schema.labels.get("val", {})
    if not task and counted:
        return any(counts.get("labelled", 1) for counts in counted.values())
    if task not in counted:
        return True
    kind = next(KINDS[one.kind] for one in schema.tasks if one.name == task)
    return metric not in kind.undefined(schema.counts("val", task, "labelled"))
