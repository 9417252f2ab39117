"""Quality thresholds of `recsys-moe evaluate`: bounds that metrics must keep."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from recsys_moe.artifact.manifest import find_artifact
from recsys_moe.errors import ConfigError, suggestion
from recsys_moe.kinds import KINDS
from recsys_moe.schema import Schema


class Threshold(NamedTuple):
    """A bound on one metric, e.g. `watch.auc` at least 0.8."""

    metric: str
    bound: float
    side: str
    """`least` or `most`."""

    def missed(self, result: dict[str, Any]) -> str | None:
        """What is missed, or None. An undefined metric misses every threshold."""
        task, _, name = self.metric.partition(".")
        value, is_least = result["tasks"][task][name], self.side == "least"
        if value is not None and (value >= self.bound if is_least else value <= self.bound):
            return None
        return f"{self.metric} must be at {self.side} {self.bound}, got {value}"


def parse_thresholds(
    path: Path, minimums: Iterable[str], maximums: Iterable[str]
) -> list[Threshold]:
    """From `watch.auc=0.8` of --min and --max. Raises ConfigError for an unknown metric."""
    tasks = Schema.load(find_artifact(path)).tasks
    known = [f"{task.name}.{name}" for task in tasks for name in KINDS[task.kind].metrics]
    thresholds = []
    for option, side, texts in (("--min", "least", minimums), ("--max", "most", maximums)):
        for text in texts:
            metric, _, bound = text.partition("=")
            if metric not in known:
                hint = suggestion(metric, known)
                raise ConfigError(f"{option} {text}: unknown metric {metric!r}; {hint}")
            try:
                thresholds.append(Threshold(metric, float(bound), side))
            except ValueError:
                thresholds.append(Threshold(metric, math.nan, side))
            if math.isnan(thresholds[-1].bound):
                raise ConfigError(f"{option} {text}: the bound must be a number, got {bound!r}")
    return thresholds
