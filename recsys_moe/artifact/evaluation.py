"""Exact evaluation of a model on rows: task metrics, loss, routing load. Axes: B batch, T tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from recsys_moe.artifact.calibration import Calibrations, helpful_calibration
from recsys_moe.artifact.metrics import RoutingMetrics
from recsys_moe.config.build import loss_weights
from recsys_moe.config.settings import Config
from recsys_moe.data.rows import Batch
from recsys_moe.kinds import Kind, by_task, kind_of
from recsys_moe.model.output import Output
from recsys_moe.model.recommender import Recommender
from recsys_moe.model.request import Request
from recsys_moe.model.tasks import row_losses
from recsys_moe.schema import Schema, Task


class Parts(Protocol):
    """Metrics of parts of the rows, such as segments."""

    def update(self, request: Request, scored: tuple[Tensor, Tensor]) -> None:
        """Add the next rows of the split; `scored`: logits and labels, of all tasks."""

    def report(self) -> dict[str, Any]:
        """What is added to the object of `evaluate --json`."""


class Evaluation:
    """Accumulates batches of a split; `result()` is the object of `evaluate --json`."""

    def __init__(
        self, schema: Schema, config: Config, calibrations: Calibrations | None = None
    ) -> None:
        self.tasks = schema.tasks
        self.weights = loss_weights(config, schema)
        self.batchwise_rows = config.data.batchwise_rows
        self.kinds = [kind_of(task) for task in self.tasks]
        self.metrics: list[Any] = [kind.measure() for kind in self.kinds]
        for task, kind, metrics in self._by_task():
            if kind.calibrates:
                metrics.calibration = (calibrations or {}).get(task.name)
        self.routing = [RoutingMetrics() for _ in self.tasks]
        self.union = RoutingMetrics()
        self.rows = 0
        self.batchwise_sum = 0.0

    def _by_task(self) -> Iterator[tuple[Task, Kind, Any]]:
        return zip(self.tasks, self.kinds, self.metrics, strict=True)

    def update(self, output: Output, labels_BT: Tensor) -> None:
        """Add a batch. Row order matters for `loss_batchwise` alone."""
        logits = by_task(output.logits_BT, self.kinds)
        for t, metrics in enumerate(self.metrics):
            metrics.update(logits[t], labels_BT[:, t])
        if output.routings:
            self._add_routings([routing.selected_BE for routing in output.routings])
        self.rows += len(labels_BT)
        self.batchwise_sum += self._batchwise(output.logits_BT, labels_BT)

    def _add_routings(self, selected: Sequence[Tensor]) -> None:
        """`selected`: (B, E) per task."""
        for metrics, selected_BE in zip(self.routing, selected, strict=True):
            metrics.update(selected_BE)
        self.union.update(torch.stack([*selected], 1).any(1))

    def calibrate(self) -> Calibrations:
        """Fit the calibrations, where kinds have them, on the rows seen, and judge by them."""
        fits = {}
        for task, kind, metrics in self._by_task():
            if kind.calibrates:
                fit = helpful_calibration(*metrics.rows())
                metrics.calibration = fit
                if fit is not None:
                    fits[task.name] = fit
        return fits

    def _batchwise(self, logits_BT: Tensor, labels_BT: Tensor) -> float:
        """Sum over groups of `batchwise_rows` rows of size x weighted mean loss of the group.

        The papers' code averages each evaluation batch over its own labelled rows and the batches
        by their size, which differs slightly from the exact mean over all labelled rows.
        """
        total = logits_BT.new_zeros((), dtype=torch.float64)
        group_rows = self.batchwise_rows
        sizes = torch.tensor([len(part) for part in labels_BT[:, 0].split(group_rows)])
        group_B = torch.arange(len(labels_BT), device=labels_BT.device) // group_rows
        logits = by_task(logits_BT, self.kinds)
        for t, kind in enumerate(self.kinds):
            losses_B, mask_B = row_losses(kind, logits[t], labels_BT[:, t])
            sums = total.new_zeros(len(sizes)).index_add_(0, group_B, losses_B.double())
            counts = total.new_zeros(len(sizes)).index_add_(0, group_B, mask_B.double())
            total += self.weights[t] * (sizes.to(sums) * sums / counts.clamp(min=1)).sum()
        return float(total)

    def result(self, split: str) -> dict[str, Any]:
        """Plain numbers; a metric that is undefined on these rows is None.

        `experts_per_example`: distinct experts over all tasks, which is what the layer evaluates;
        None, and `routing` empty, for a model without routers.
        """
        routed = zip(self.tasks, self.routing, strict=True) if self.union.rows else ()
        tasks = {task.name: metrics.compute() for task, _, metrics in self._by_task()}
        losses = [tasks[task.name][kind.loss_metric] or 0.0 for task, kind, _ in self._by_task()]
        return {
            "split": split,
            "rows": self.rows,
            "loss": sum(w * loss for w, loss in zip(self.weights, losses, strict=True)),
            "loss_batchwise": self.batchwise_sum / max(self.rows, 1),
            "tasks": tasks,
            "experts_per_example": self.union.compute().get("experts_per_example"),
            "routing": {task.name: routing.compute() for task, routing in routed},
        }


def merged(parts: Iterable[Evaluation]) -> Evaluation:
    """One evaluation of the rows of all `parts`, in their order; the first one is changed."""
    first, *others = parts
    for other in others:
        for metrics, more in zip(first.metrics, other.metrics, strict=True):
            metrics.merge(more)
        pairs = [*zip(first.routing, other.routing, strict=True), (first.union, other.union)]
        for routing, visits in pairs:
            routing.merge(visits)
        first.rows += other.rows
        first.batchwise_sum += other.batchwise_sum
    return first


def evaluate_model(
    model: Recommender,
    batches: Iterable[Batch],
    schema: Schema,
    config: Config,
    *,
    split: str,
    progress: Callable[[int], None] = lambda rows: None,
    calibrations: Calibrations | None = None,
    apart: Sequence[Parts] = (),
) -> dict[str, Any]:
    """Evaluate `model` in evaluation mode on its own device; `progress` receives rows done.

    `apart` is updated too and added to the result.
    """
    evaluation = Evaluation(schema, config, calibrations)
    add_rows(evaluation, model, batches, config, progress=progress, apart=apart)
    result = evaluation.result(split)
    for parts in apart:
        result |= parts.report()
    return result


@torch.inference_mode()
def add_rows(
    evaluation: Evaluation,
    model: Recommender,
    batches: Iterable[Batch],
    config: Config,
    *,
    progress: Callable[[int], None] = lambda rows: None,
    apart: Sequence[Parts] = (),
) -> None:
    """Score `batches` by `model` in evaluation mode and add them to `evaluation`."""
    model.eval()
    model.reseed(config.trainer.seed)  # only routers that sample at inference draw
    for batch in batches:
        request, labels = batch.request.to(model.device), batch.labels.to(model.device)
        output = model(request)
        evaluation.update(output, labels)
        for parts in apart:
            parts.update(request, (output.logits_BT, labels))
        progress(len(labels))
