"""Metrics of rows with known and unknown users and items, and of rows by their context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recsys_moe.data.columns import Rows
from recsys_moe.data.streaming import trained_ids
from recsys_moe.kinds import AFTER_TRAINING, Metrics, by_task, kind_of
from recsys_moe.model.request import Request
from recsys_moe.schema import Schema

NAMES = ("both_known", "user_unseen", "item_unseen", "both_unseen")
"""In the order of `is_new_user + 2 is_new_item`."""
MOST_CATEGORIES = 32
"""Context features with more have no segments."""


class Segments:
    """Metrics of each segment of the rows of a split; an id is known if it is in a training row.

    Each category of a context feature is a segment, too. Keeps 8 bytes per row, binary task and
    kind of segment, as the metrics of the whole split do.
    """

    def __init__(
        self, train: Rows, schema: Schema, context: Sequence[tuple[str, Sequence[str]]] = ()
    ) -> None:
        """Reads the ids of `train` once. `context`: names and categories of the context features of
        the model; without categories there are no segments."""
        self.tasks = schema.tasks
        self.kinds = [kind_of(task) for task in schema.tasks]
        self.known = tuple(_with_unseen(mask) for mask in trained_ids(train, schema))
        self.context = [_names(*one) for one in context]
        shown = (_names(feature, _in_order(values)) for feature, values in context)
        names = [*NAMES, *(name for names in shown for name in names)]
        self.rows = dict.fromkeys(names, 0)
        self.metrics: dict[str, list[Metrics]] = {
            name: [kind_of(task).measure() for task in schema.tasks] for name in names
        }

    def update(self, request: Request, scored: tuple[Tensor, Tensor]) -> None:
        """Add a batch; `scored`: logits and labels, of all tasks."""
        new_user_B, new_item_B = (
            ~known[index_B.cpu().long()]
            for known, index_B in zip(self.known, (request.user, request.item), strict=True)
        )
        self._add(NAMES, new_user_B.int() + 2 * new_item_B.int(), scored)
        for place, names in enumerate(self.context):
            if names and request.context is not None:
                value_B = request.context[:, place].cpu()
                self._add(names, value_B.nan_to_num(len(names) - 1).int(), scored)

    def _add(self, names: Sequence[str], segment_B: Tensor, scored: tuple[Tensor, Tensor]) -> None:
        for number in segment_B.unique().tolist():
            at_B = (segment_B == number).to(scored[0].device)
            self.rows[names[number]] += int(at_B.sum())
            logits = by_task(scored[0][at_B], self.kinds)
            for t, metrics in enumerate(self.metrics[names[number]]):
                metrics.update(logits[t], scored[1][at_B, t])

    def result(self) -> dict[str, dict[str, Any]]:
        """Of segments with rows: `rows`, and the metrics by task, None where undefined."""
        return {name: self._of(name) for name, rows in self.rows.items() if rows}

    def report(self) -> dict[str, Any]:
        return {"segments": self.result()}

    def _of(self, name: str) -> dict[str, Any]:
        tasks = {}
        for task, metrics in zip(self.tasks, self.metrics[name], strict=True):
            computed = metrics.compute()
            shown = (*kind_of(task).metrics, "rows")
            tasks[task.name] = {key: computed[key] for key in shown if key not in AFTER_TRAINING}
        return {"rows": self.rows[name], "tasks": tasks}


def _with_unseen(known: Tensor) -> Tensor:
    """With the row of ids that training has not seen."""
    return torch.cat([known, torch.zeros(1, dtype=torch.bool)])


def _names(feature: str, categories: Sequence[str]) -> list[str]:
    """Of the segments of a context feature by index; the last ones are of unknown and of missing
    categories."""
    if not 0 < len(categories) <= MOST_CATEGORIES:
        return []
    return [f"{feature}={value}" for value in (*categories, "(unknown)", "(missing)")]


def _in_order(categories: Sequence[str]) -> Sequence[str]:
    """Numbers by size; else as they are."""
    try:
        return sorted(categories, key=float)
    except ValueError:
        return categories
