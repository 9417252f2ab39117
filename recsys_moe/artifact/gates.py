"""Quality gates of `recsys-moe evaluate`: bounds that metrics must keep."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recsys_moe.artifact.metrics import METRICS
from recsys_moe.artifact.model_folder import find_artifact
from recsys_moe.errors import ConfigError, suggestion
from recsys_moe.schema import Schema


@dataclass(frozen=True)
class Gate:
    """A bound on one metric, e.g. `watch.auc` at least 0.8."""

    metric: str
    bound: float
    at_least: bool

    def missed(self, result: dict[str, Any]) -> str | None:
        """What is missed, in words, or None. An undefined metric misses every gate."""
        task, _, name = self.metric.partition(".")
        value = result["tasks"][task][name]
        met = value is not None and (value >= self.bound if self.at_least else value <= self.bound)
        side = "least" if self.at_least else "most"
        return None if met else f"{self.metric} must be at {side} {self.bound}, got {value}"


def parse_gates(path: Path, minimums: Iterable[str], maximums: Iterable[str]) -> list[Gate]:
    """`watch.auc=0.8` for --min and --max. Raises ConfigError for a metric the model lacks."""
    tasks = Schema.load(find_artifact(path)).tasks
    known = [f"{task.name}.{name}" for task in tasks for name in METRICS[task.kind].names]
    gates = [_gate("--min", text, known) for text in minimums]
    return gates + [_gate("--max", text, known) for text in maximums]


def _gate(option: str, text: str, known: list[str]) -> Gate:
    metric, _, bound = text.partition("=")
    if metric not in known:
        raise ConfigError(
            f"{option} {text}: unknown metric {metric!r}; {suggestion(metric, known)}"
        )
    try:
        least = float(bound)
    except ValueError:
        least = math.nan
    if math.isnan(least):
        raise ConfigError(f"{option} {text}: the bound must be a number, got {bound!r}")
    return Gate(metric, least, option == "--min")
