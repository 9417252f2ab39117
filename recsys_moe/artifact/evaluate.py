"""Exact evaluation of a model on a split: task metrics, loss, routing load."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from torch import Tensor

from recsys_moe.artifact.calibration import Calibrations, fit_calibrations
from recsys_moe.artifact.metrics import (
    LOSS_KEY,
    METRICS,
    BinaryMetrics,
    RoutingMetrics,
    TaskMetrics,
)
from recsys_moe.artifact.model_folder import Artifact, find_artifact, load_artifact
from recsys_moe.artifact.run_folder import DATA_LOCK
from recsys_moe.config.settings import Config
from recsys_moe.data.columns import Batch
from recsys_moe.data.streaming import eval_batches, open_rows, rows_within
from recsys_moe.errors import ConfigError, DataError, suggestion
from recsys_moe.files import write_json
from recsys_moe.model.network import MultiTaskMoE, Output
from recsys_moe.model.tasks import row_losses
from recsys_moe.schema import Schema, Task, check_split

logger = logging.getLogger("recsys_moe.evaluate")


def task_weights(config: Config, tasks: Iterable[Task]) -> list[float]:
    """Loss weight per task: the configuration's, else the schema's."""
    return [config.tasks[t.name].weight if t.name in config.tasks else t.weight for t in tasks]


def _metrics(task: Task, calibrations: Calibrations) -> TaskMetrics:
    if task.kind == "binary":
        return BinaryMetrics(calibrations.get(task.name))
    return METRICS[task.kind]()


class Evaluation:
    """Accumulates batches of a split; `result()` is the object of `evaluate --json`."""

    def __init__(
        self, schema: Schema, config: Config, calibrations: Calibrations | None = None
    ) -> None:
        self.tasks = schema.tasks
        self.weights = task_weights(config, schema.tasks)
        self.batchwise_rows = config.data.batchwise_rows
        self.metrics = [_metrics(task, calibrations or {}) for task in self.tasks]
        self.routing = [RoutingMetrics() for _ in self.tasks]
        self.union = RoutingMetrics()
        self.rows = 0
        self.batchwise_sum = 0.0

    def update(self, output: Output, labels_BT: Tensor) -> None:
        """Add a batch. Row order matters for `loss_batchwise` alone."""
        for t, metrics in enumerate(self.metrics):
            metrics.update(output.logits_BT[:, t], labels_BT[:, t])
            self.routing[t].update(output.routings[t].selected_BE)
        selected_BTE = torch.stack([routing.selected_BE for routing in output.routings], 1)
        self.union.update(selected_BTE.any(1))
        self.rows += len(labels_BT)
        self.batchwise_sum += self._batchwise(output.logits_BT, labels_BT)

    def merge(self, other: Evaluation) -> None:
        """Add what `other` has seen; its rows come behind those of this one."""
        for part, more in zip(self._parts(), other._parts(), strict=True):
            part.merge(more)  # type: ignore[arg-type]
        self.rows += other.rows
        self.batchwise_sum += other.batchwise_sum

    def calibrate(self) -> Calibrations:
        """Fit the calibrations of the binary tasks on the rows seen, and judge by them."""
        for task, metrics in zip(self.tasks, self.metrics, strict=True):
            if isinstance(metrics, BinaryMetrics):
                logits_N1, labels_N1 = (c.values[:, None] for c in (metrics.logits, metrics.labels))
                metrics.calibration = fit_calibrations(logits_N1, labels_N1, [task]).get(task.name)
        return self.calibrations

    @property
    def calibrations(self) -> Calibrations:
        """In use, by task name."""
        found = {}
        for task, metrics in zip(self.tasks, self.metrics, strict=True):
            if isinstance(metrics, BinaryMetrics) and metrics.calibration is not None:
                found[task.name] = metrics.calibration
        return found

    def _parts(self) -> list[TaskMetrics | RoutingMetrics]:
        return [*self.metrics, *self.routing, self.union]

    def _batchwise(self, logits_BT: Tensor, labels_BT: Tensor) -> float:
        """Sum over groups of `batchwise_rows` rows of size x weighted mean loss of the group.

        The papers' code averages each evaluation batch over its own labelled rows and the batches
        by their size, which differs slightly from the exact mean over all labelled rows.
        """
        total = logits_BT.new_zeros((), dtype=torch.float64)
        group_rows = self.batchwise_rows
        sizes = torch.tensor([len(part) for part in labels_BT[:, 0].split(group_rows)])
        group_B = torch.arange(len(labels_BT), device=labels_BT.device) // group_rows
        for t, task in enumerate(self.tasks):
            losses_B, mask_B = row_losses(task.kind, logits_BT[:, t], labels_BT[:, t])
            sums = total.new_zeros(len(sizes)).index_add_(0, group_B, losses_B.double())
            counts = total.new_zeros(len(sizes)).index_add_(0, group_B, mask_B.double())
            total += self.weights[t] * (sizes.to(sums) * sums / counts.clamp(min=1)).sum()
        return float(total)

    def result(self, split: str) -> dict[str, Any]:
        """Plain numbers; a metric that is undefined on these rows is None.

        `experts_per_example`: distinct experts over all tasks, which is what the layer evaluates.
        """
        tasks = {t.name: m.compute() for t, m in zip(self.tasks, self.metrics, strict=True)}
        losses = [tasks[task.name][LOSS_KEY[task.kind]] or 0.0 for task in self.tasks]
        return {
            "split": split,
            "rows": self.rows,
            "loss": sum(w * loss for w, loss in zip(self.weights, losses, strict=True)),
            "loss_batchwise": self.batchwise_sum / max(self.rows, 1),
            "tasks": tasks,
            "experts_per_example": self.union.compute()["experts_per_example"],
            "routing": {
                task.name: routing.compute()
                for task, routing in zip(self.tasks, self.routing, strict=True)
            },
        }


def merged(parts: Iterable[Evaluation]) -> Evaluation:
    """One evaluation of the rows of all `parts`, in their order; the first one is changed."""
    first, *others = parts
    for other in others:
        first.merge(other)
    return first


def evaluate_model(
    model: MultiTaskMoE,
    batches: Iterable[Batch],
    schema: Schema,
    config: Config,
    split: str,
    progress: Callable[[int], None] = lambda rows: None,
    calibrations: Calibrations | None = None,
) -> dict[str, Any]:
    """Evaluate `model` in evaluation mode on its own device; `progress` is told rows done."""
    evaluation = Evaluation(schema, config, calibrations)
    add_rows(evaluation, model, batches, config, progress)
    return evaluation.result(split)


@torch.inference_mode()
def add_rows(
    evaluation: Evaluation,
    model: MultiTaskMoE,
    batches: Iterable[Batch],
    config: Config,
    progress: Callable[[int], None] = lambda rows: None,
) -> None:
    """Score `batches` by `model` in evaluation mode and add them to `evaluation`."""
    model.eval()
    model.reseed(config.trainer.seed)  # only routers that sample at inference draw
    device = model.user_embedding.weight.device
    for batch in batches:
        user, item, labels = (tensor.to(device) for tensor in batch)
        evaluation.update(model(user, item), labels)
        progress(len(labels))


def evaluate_artifact(
    path: Path,
    split: str,
    data: Path | None,
    progress: Callable[[int], None] = lambda rows: None,
) -> dict[str, Any]:
    """Evaluate a run or model folder on a split of its data. Raises DataError.

    A run folder knows its data; a model folder alone needs `data`.
    """
    check_split("--split", split)
    artifact = load_artifact(path)
    folder, schema = data_of(path, artifact, data)
    most = rows_within(schema, artifact.config.data.max_memory_mb)
    batches = eval_batches(open_rows(folder, schema, split, most), artifact.config.eval_rows)
    result = evaluate_model(
        artifact.model, batches, schema, artifact.config, split, progress, artifact.calibration
    )
    result["trained_on_these_data"] = schema == artifact.schema
    return result


def data_of(path: Path, artifact: Artifact, data: Path | None) -> tuple[Path, Schema]:
    """The prepared folder `data`, by default the one that the run at `path` has on record.

    Raises DataError when there is none or it does not fit the model.
    """
    folder = Path(data) if data else _recorded_data(path)
    schema = Schema.load(folder)
    _check_fits(artifact, schema, folder)
    return folder, schema


def _recorded_data(path: Path) -> Path:
    """The data that a run folder, or the run folder around a model folder, was trained on."""
    for lock in (Path(path) / DATA_LOCK, Path(path).resolve().parent / DATA_LOCK):
        if lock.is_file():
            break
    else:
        raise DataError(f"{path} does not say which data it was trained on; pass --data DIR")
    try:
        folder = Path(json.loads(lock.read_text(encoding="utf-8"))["folder"])
    except (ValueError, LookupError, TypeError):
        raise DataError(f"{lock} is damaged; pass --data DIR") from None
    if not folder.is_dir():
        raise DataError(f"the data of {path} are no longer at {folder}; pass --data DIR")
    return folder


def _check_fits(artifact: Artifact, schema: Schema, folder: Path) -> None:
    """Refuse data with other tasks, or in which an index stands for another id."""
    wanted, found = ([(t.name, t.kind) for t in s.tasks] for s in (artifact.schema, schema))
    if wanted != found:
        raise DataError(f"{folder}: the model's tasks are {wanted} in this order, got {found}")
    for name, ids in (("user", artifact.users["user"]), ("item", artifact.items["item"])):
        file = folder / f"{name}s.parquet"
        if not file.is_file() or not pq.read_table(file, columns=[name])[name].equals(ids):
            raise DataError(
                f"{file} is missing or differs from the ids the model was trained with; "
                "evaluate on its own data, or score raw ids with `recsys-moe predict`"
            )


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
        return Gate(metric, float(bound), option == "--min")
    except ValueError:
        raise ConfigError(f"{option} {text}: the bound must be a number, got {bound!r}") from None


def save_evaluation(path: Path, result: dict[str, Any]) -> None:
    """Keep the result in evaluation/<split>.json when `path` is a run folder and the data its own.

    Rows of another preparation may have been training rows of this run.
    """
    if not result["trained_on_these_data"]:
        logger.warning("not the data the model was trained on: it may know some of these rows")
    elif (Path(path) / "model").is_dir():
        write_json(Path(path) / "evaluation" / f"{result['split']}.json", result)
