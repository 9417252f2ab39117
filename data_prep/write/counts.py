"""What schema.json says of the labels of a split."""

from __future__ import annotations

import numpy as np

from data_prep.rows import Examples
from recsys_moe.schema import Task


class Counts:
    """Of one split: rows, and per task the labelled rows with their sum, ones, squares and ends,
    and the first four with each row as often as its weight says."""

    def __init__(self, tasks: tuple[Task, ...]) -> None:
        self.rows = 0
        self._labels = {task.name: np.zeros((2, 4), dtype=np.longdouble) for task in tasks}
        self._ends = {task.name: (np.inf, -np.inf) for task in tasks}
        self._kinds = {task.name: task.kind for task in tasks}
        self._weigh = {task.name: np.zeros(2, dtype=np.int64) for task in tasks}

    def add(self, part: Examples) -> None:
        self.rows += len(part)
        for name, labels in part.labels.items():
            is_known = ~np.isnan(labels)
            known = labels[is_known].astype(np.longdouble)
            ones, squares = known == 1, np.square(known)
            self._labels[name][0] += (len(known), known.sum(), ones.sum(), squares.sum())
            if part.weight is not None:
                weight = part.weight[is_known].astype(np.longdouble)
                parts = weight, weight * known, weight * ones, weight * squares
                self._labels[name][1] += [values.sum() for values in parts]
            low, high = self._ends[name]
            self._ends[name] = known.min(initial=low), known.max(initial=high)
            if part.weight is not None:  # of positives: negatives that are drawn weigh 1
                counts = labels == 1 if self._kinds[name] == "binary" else ~np.isnan(labels)
                self._weigh[name] += (counts.sum(), (part.weight[counts] > 0).sum())

    def weightless(self) -> list[str]:
        """Tasks whose rows (of a binary one the positives) all weigh 0."""
        return [name for name, (rows, heavy) in self._weigh.items() if rows and not heavy]

    def of(self, task: Task, split: str) -> dict[str, float]:
        """Over the labelled rows; all is 0 without any. Of training with weights, too.

        The deviation with 9 digits: more would depend on how the rows are cut into blocks.
        """
        counts = self._counted(task)
        return counts | self._weighted(task) if split == "train" else counts

    def _counted(self, task: Task) -> dict[str, float]:
        labelled, total, ones, squares = self._labels[task.name][0]
        mean = total / labelled if labelled else labelled
        counts = {"labelled": int(labelled), "mean": float(mean)}
        if task.kind == "binary":
            return counts | {"positive": int(ones)}
        low, high = self._ends[task.name] if labelled else (0, 0)
        ends = {"min": float(low), "max": float(high)}
        return counts | ends | {"std": _rounded(_deviation(labelled, total, squares))}

    def _weighted(self, task: Task) -> dict[str, float]:
        """With each row as often as its weight says; nothing without weights above 0."""
        labelled, total, ones, squares = self._labels[task.name][1]
        if not labelled:
            return {}
        if task.kind == "binary":
            found = {"labelled": labelled, "positive": ones}
        else:
            found = {"mean": total / labelled, "std": _deviation(labelled, total, squares)}
        return {f"weighted_{name}": _rounded(value) for name, value in found.items()}


def _deviation(rows: float, total: float, squares: float) -> float:
    """Standard deviation of the population, 0 without rows."""
    return np.sqrt(max(squares / rows - (total / rows) ** 2, 0)) if rows else 0.0


def _rounded(value: float) -> float:
    return float(f"{value:.9g}")
