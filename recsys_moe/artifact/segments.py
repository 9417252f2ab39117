"""Metrics of rows with known and unknown users and items."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recsys_moe.data.columns import Rows
from recsys_moe.data.streaming import trained_ids
from recsys_moe.kinds import AFTER_TRAINING, Metrics, kind_of
from recsys_moe.model.request import Request
from recsys_moe.schema import Schema

NAMES = ("both_known", "user_unseen", "item_unseen", "both_unseen")
"""In the order of `is_new_user + 2 is_new_item`."""


class Segments:
    """Metrics of each segment of the rows of a split; an id is known if it is in a training row.

    Keeps 8 bytes per row and binary task, as the metrics of the whole split do.
    """

    def __init__(self, train: Rows, schema: Schema) -> None:
        """Reads the ids of `train` once."""
        self.tasks = schema.tasks
        self.known = tuple(_with_unseen(mask) for mask in trained_ids(train, schema))
        self.rows = dict.fromkeys(NAMES, 0)
        self.metrics: dict[str, list[Metrics]] = {
            name: [kind_of(task).measure() for task in schema.tasks] for name in NAMES
        }

    def update(self, request: Request, scored: tuple[Tensor, Tensor]) -> None:
        """Add a batch; `scored`: logits and labels, (B, T) each."""
        new_user_B, new_item_B = (
            ~known[index_B.cpu().long()]
            for known, index_B in zip(self.known, (request.user, request.item), strict=True)
        )
        segment_B = new_user_B.int() + 2 * new_item_B.int()
        for number in segment_B.unique().tolist():
            at_B = (segment_B == number).to(request.user.device)
            self.rows[NAMES[number]] += int(at_B.sum())
            for t, metrics in enumerate(self.metrics[NAMES[number]]):
                metrics.update(*(columns_BT[at_B, t] for columns_BT in scored))

    def result(self) -> dict[str, dict[str, Any]]:
        """Of segments with rows: `rows`, and the metrics by task, None where undefined."""
        return {name: self._of(name) for name in NAMES if self.rows[name]}

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
