"""What schema.json says of the labels of a split."""

from __future__ import annotations

from typing import Any

import numpy as np

from data_prep.rows import Examples
from recsys_moe.kinds import kind_of, nine_digits
from recsys_moe.schema import Task


class Counts:
    """Of one split: rows, and per task the sums that its kind counts, over the labelled rows and
    with each row as often as its weight says."""

    def __init__(self, tasks: tuple[Task, ...]) -> None:
        self.rows = 0
        self._kinds = {task.name: kind_of(task) for task in tasks}
        self._sums: dict[str, tuple[dict[str, Any], dict[str, Any]]]
        self._sums = {task.name: ({}, {}) for task in tasks}
        self._ends = {task.name: (np.inf, -np.inf) for task in tasks}
        self._weigh = {task.name: np.zeros(2, dtype=np.int64) for task in tasks}

    def add(self, part: Examples) -> None:
        self.rows += len(part)
        for name, labels in part.labels.items():
            is_known, kind = ~np.isnan(labels), self._kinds[name]
            known = labels[is_known].astype(np.longdouble)
            values = {"total": known, **kind.statistics(known)}
            all_rows, by_weight = self._sums[name]
            _add(all_rows, {"labelled": len(known)} | {n: v.sum() for n, v in values.items()})
            low, high = self._ends[name]
            self._ends[name] = known.min(initial=low), known.max(initial=high)
            if part.weight is not None:
                weight = part.weight[is_known].astype(np.longdouble)
                sums = {n: (weight * v).sum() for n, v in values.items()}
                _add(by_weight, {"labelled": weight.sum()} | sums)
                # of positives: negatives that are drawn weigh 1
                counts = labels == 1 if kind.has_positives else is_known
                self._weigh[name] += (counts.sum(), (part.weight[counts] > 0).sum())

    def weightless(self) -> list[str]:
        """Tasks whose rows (the positives, where there are) all weigh 0."""
        return [name for name, (rows, heavy) in self._weigh.items() if rows and not heavy]

    def of(self, task: Task, split: str) -> dict[str, float]:
        """Over the labelled rows; all is 0 without any. Of training with weights, too."""
        counts = self._counted(task)
        return counts | self._weighted(task) if split == "train" else counts

    def _counted(self, task: Task) -> dict[str, float]:
        sums = self._sums[task.name][0]
        if not sums:  # no block
            nothing = np.empty(0, dtype=np.longdouble)
            names = self._kinds[task.name].statistics(nothing)
            sums = dict.fromkeys(("labelled", "total", *names), 0)
        labelled, total = sums["labelled"], sums["total"]
        low, high = self._ends[task.name] if labelled else (0, 0)
        ends = {"min": float(low), "max": float(high)}
        mean = float(total / labelled if labelled else 0)
        counts = {"labelled": int(labelled), "mean": mean}
        return counts | self._kinds[task.name].counted({**sums, **ends})

    def _weighted(self, task: Task) -> dict[str, float]:
        """With each row as often as its weight says; nothing without weights above 0."""
        sums = self._sums[task.name][1]
        if not sums.get("labelled"):
            return {}
        found = self._kinds[task.name].weighted(sums)
        return {f"weighted_{name}": nine_digits(value) for name, value in found.items()}


def _add(sums: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        sums[name] = sums.get(name, 0) + value
