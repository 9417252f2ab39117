"""Losses on held-out rows under sparse and dense inference of the same model (Fig. 2).

A router that is a good sparse approximation of the dense mixture has nearly the same losses with
all experts as with k of them. Wasserstein-1 distance between the empirical distributions of the
losses, as in the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.data.batches import EvalBatches
from recsys_moe.data.rows import Batch
from recsys_moe.data.streaming import open_rows, rows_within
from recsys_moe.errors import ConfigError
from recsys_moe.kinds import kind_of
from recsys_moe.model.recommender import Recommender
from recsys_moe.model.tasks import row_losses
from recsys_moe.routers import Router, RouterConfig, find_router
from recsys_moe.schema import Schema, Task

Losses = npt.NDArray[np.float64]
WAYS = ("sparse", "dense")
SWITCHES = {
    "moesart": {"sparse": {"inference": "sparse"}, "dense": {"inference": "dense"}},
    "softmax": {"sparse": {"inference": "topk"}, "dense": {"inference": "dense"}},
    "topk": {"sparse": {}, "dense": {"name": "softmax"}},
}
"""Per router as trained: what its inference becomes. `topk` without its selection is the softmax
over the same logits; `softmax` made sparse is renormalised over the k that are left."""


@dataclass(frozen=True)
class Gap:
    """Losses of the rows of a split, by way of inference, for one trained model."""

    router: str
    run: str
    losses: dict[str, dict[str, Losses]] = field(repr=False)
    """Task, then way: the unweighted loss of each row that has the task's label."""

    def mean(self, task: str, way: str) -> float:
        return float(self.losses[task][way].mean())


def inference_gap(run: Path, data: Path, split: str, k: int = 2) -> Gap:
    """Losses of a run folder's model with k experts and with all. Raises ConfigError."""
    artifact = load_artifact(run)
    router: Any = artifact.config.router
    if router is None or router.name not in SWITCHES:
        raise ConfigError(
            f"{run}: sparse and dense inference are known for {', '.join(SWITCHES)}, "
            f"got {router and router.name}"
        )
    schema = Schema.load(data)
    most = rows_within(schema, artifact.config.data.max_memory_mb)
    losses: dict[str, dict[str, Losses]] = {task.name: {} for task in schema.tasks}
    for way in WAYS:
        switch_routers(artifact.model, switched(router, way, k))
        rows = open_rows(data, schema, split, most)
        batches = EvalBatches(rows, artifact.config.eval_rows)
        by_task = losses_of_rows(artifact.model, batches, schema.tasks)
        for task, values in by_task.items():
            losses[task][way] = values
    return Gap(router.name, run.name, losses)


def selected_by(run: Path) -> int:
    """The k of a run's router; 0 for one that takes all experts."""
    return int(getattr(load_artifact(run).config.router, "k", 0))


def switched(router: RouterConfig, way: str, k: int) -> RouterConfig:
    """The configuration of `router` for one way of inference."""
    changes: dict[str, Any] = dict(SWITCHES[router.name][way])
    name = str(changes.pop("name", router.name))
    cls = find_router(name).Config
    kept = router.model_dump(include=set(cls.model_fields) - {"name"})
    if changes.get("inference") == "topk":
        changes["inference_k"] = k
    return cls.model_validate({**kept, **changes, "name": name})


def switch_routers(model: Recommender, config: RouterConfig) -> None:
    """Replace every router of `model` by one of `config` with the same parameters."""
    layer: Any = model.moe
    for task, router in enumerate(model.routers):
        replacement: Router = find_router(config.name)(config, router.shape)
        replacement.load_state_dict(router.state_dict())
        layer.routers[task] = replacement.eval()


@torch.inference_mode()
def losses_of_rows(
    model: Recommender, batches: Iterable[Batch], tasks: Sequence[Task]
) -> dict[str, Losses]:
    """By task: the loss of each row that has the label, in the order of the rows."""
    model.eval()
    parts: dict[str, list[Tensor]] = {task.name: [] for task in tasks}
    for batch in batches:
        columns = model(batch.request).logits_BT.unbind(1), batch.labels.unbind(1)
        for task, logits_B, labels_B in zip(tasks, *columns, strict=True):
            losses_B, mask_B = row_losses(kind_of(task), logits_B, labels_B)
            parts[task.name].append(losses_B[mask_B].double())
    return {name: torch.cat(losses).numpy() for name, losses in parts.items()}


@dataclass(frozen=True)
class Distance:
    """Wasserstein-1 distance between two distributions of a task's loss, in units of the loss."""

    task: str
    one: str
    other: str
    distance: float


def distances(gaps: list[Gap]) -> list[Distance]:
    """Within each router between its two ways of inference (Fig. 2a, c, e), and from each sparsely
    trained router's sparse inference to the dense one of the densely trained (Fig. 2b, d)."""
    pairs = [((gap, "sparse"), (gap, "dense")) for gap in gaps]
    for reference in (gap for gap in gaps if gap.router == "softmax"):
        pairs += [((g, "sparse"), (reference, "dense")) for g in gaps if g.router != "softmax"]
    from scipy.stats import wasserstein_distance

    return [
        Distance(
            task,
            f"{one.router}, {way} inference",
            f"{other.router}, {other_way} inference",
            float(wasserstein_distance(one.losses[task][way], other.losses[task][other_way])),
        )
        for task in gaps[0].losses
        for (one, way), (other, other_way) in pairs
    ]
