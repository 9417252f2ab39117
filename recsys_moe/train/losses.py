"""The loss of a training step, task by task.

Axes: B rows of a batch, T tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from recsys_moe.data.rows import Batch
from recsys_moe.kinds import Kind, by_task, kind_of
from recsys_moe.model.output import Output
from recsys_moe.model.tasks import Counts, mean_disagreement, mean_loss
from recsys_moe.routers import Router
from recsys_moe.schema import Task


class TaskLosses:
    """Training weight times mean loss of each task."""

    def __init__(self, tasks: Sequence[Task], weights: Sequence[float]) -> None:
        """`weights`: factor of the mean loss of each task."""
        self.kinds = [kind_of(task) for task in tasks]
        self.weights = weights

    def __call__(self, output: Output, labels_BT: Tensor, counts: Counts) -> Tensor:
        """Of one pass. (T,)"""
        logits = by_task(output.logits_BT, self.kinds)
        columns = zip(logits, labels_BT.unbind(1), strict=True)
        parts = zip(self.kinds, self.weights, columns, counts.labelled_T, strict=True)
        per_task = [
            weight * mean_loss(kind, *column, count, weight_B=counts.weight_B, user_B=counts.user_B)
            for kind, weight, column, count in parts
        ]
        return torch.stack(per_task)

    def disagreement(
        self, passes: Sequence[Output], labels_BT: Tensor, counts: Counts, routers: Sequence[Router]
    ) -> Tensor:
        """Of two passes: training weight x `consistency` of the task's router x mean. (T,)"""
        logits = [by_task(output.logits_BT, self.kinds) for output in passes]
        columns = zip(*logits, labels_BT.unbind(1), strict=True)
        parts = zip(self.kinds, self.weights, routers, columns, counts.labelled_T, strict=True)
        per_task = [
            weight
            * router.consistency
            * mean_disagreement(kind, *column, count=count, weight_B=counts.weight_B)
            for kind, weight, router, column, count in parts
        ]
        return torch.stack(per_task)


def shifted(output: Output, batch: Batch, kinds: Sequence[Kind]) -> Output:
    """With the logits that the loss uses where negatives are drawn by popularity."""
    if batch.offset is None:
        return output
    offset_BL = batch.offset
    if offset_BL.shape != output.logits_BT.shape:
        sizes = torch.tensor([kind.outputs for kind in kinds], device=offset_BL.device)
        offset_BL = offset_BL.repeat_interleave(sizes, 1)
    return output._replace(logits_BT=output.logits_BT - offset_BL)
