"""A run folder, and one pass of its model over a split or a sample.

Axes: N rows, T tasks, E experts, B rows of a batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recsys_moe.artifact import epoch_metrics
from recsys_moe.artifact.baselines import baselines
from recsys_moe.artifact.evaluate import data_of, open_split, segments_of
from recsys_moe.artifact.evaluation import Evaluation
from recsys_moe.artifact.model_folder import Artifact, find_artifact, load_artifact
from recsys_moe.artifact.monitor import find_monitor
from recsys_moe.artifact.routing_history import take_rows, top_expert
from recsys_moe.artifact.run_folder import DATA_LOCK
from recsys_moe.config.settings import weighed_apart
from recsys_moe.data.batches import EvalBatches
from recsys_moe.data.columns import Rows
from recsys_moe.data.rows import Columns
from recsys_moe.errors import ConfigError
from recsys_moe.lab.report import genres, learning
from recsys_moe.lab.report.timelines import RoutingByEvents, routing_by_events
from recsys_moe.routers import Routing
from recsys_moe.schema import SPLITS

logger = logging.getLogger("recsys_moe.report")

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True)
class Sample:
    """Rows of a split and the model's output for them."""

    columns: Columns
    split: str
    split_rows: int
    """Rows of the whole split."""
    logits_NT: Tensor
    top_NT: Tensor
    """int64: the expert with the largest weight, the most probable one of equal weights; -1 for
    a row without an expert."""
    entropy_NT: Tensor
    """Of the routing distribution in nats; NaN for a row without an expert."""
    visits_TE: Tensor
    """Rows that selected an expert."""
    weight_TE: Tensor
    """Sum over rows of the routing weights."""
    either_E: Tensor
    """Rows that selected an expert for any task."""
    mass_TE: Tensor
    """[t, j]: sum over rows of the j + 1 largest entries of the routing distribution."""
    dense_T: Tensor
    """Not 0: the distribution is the router's dense probabilities; else its weights, normalised."""
    evaluation: dict[str, Any]
    """Metrics on these rows, as `evaluate --json` has them; in a Run with `baselines`."""

    @property
    def rows(self) -> int:
        return len(self.columns)

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole split."""
        return self.rows == self.split_rows


def choose_rows(total: int, most: int, group: int, seed: int) -> Tensor:
    """Ascending places of all rows, or of random groups of `group` consecutive ones.

    At most `most` rows, or one group. Rows of a group are routed together and so stay together.
    """
    groups, wanted = -(-total // group), max(1, most // group)
    if total <= most or wanted >= groups:
        return torch.arange(total)
    order_G = torch.randperm(groups, generator=torch.Generator().manual_seed(seed))
    first_G = order_G[:wanted].sort().values * group
    row_N = (first_G[:, None] + torch.arange(group)).flatten()
    return row_N[row_N < total]


ROUTED = ("top_NT", "entropy_NT", "visits_TE", "weight_TE", "either_E", "mass_TE", "dense_T")


def routed(routings: Sequence[Routing]) -> dict[str, Tensor]:
    """Statistics of the routings of a batch, one per task, by the field of Sample.

    Per row, or summed over the rows in float64; empty for a model without routers.
    """
    if not routings:
        return {field: torch.zeros(0, 0) for field in ROUTED}
    shares = [distribution(routing) for routing in routings]
    largest = [share_BE.sort(-1, descending=True).values.double() for share_BE in shares]
    selected_TBE = torch.stack([routing.selected_BE for routing in routings])
    return {
        "top_NT": torch.stack([top_expert(routing) for routing in routings], 1),
        "entropy_NT": torch.stack([entropy(share_BE) for share_BE in shares], 1),
        "visits_TE": selected_TBE.sum(1).double(),
        "weight_TE": torch.stack([routing.weights_BE.double().sum(0) for routing in routings]),
        "either_E": selected_TBE.any(0).sum(0).double(),
        "mass_TE": torch.stack([largest_BE.cumsum(-1).sum(0) for largest_BE in largest]),
        "dense_T": torch.tensor([routing.probs_BE is not None for routing in routings]),
    }


def joined(batches: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Rows of all batches one after the other, sums added up."""
    return {
        name: torch.cat([batch[name] for batch in batches])
        if name.endswith("_NT")
        else torch.as_tensor(sum(batch[name] for batch in batches))
        for name in batches[0]
    }


def distribution(routing: Routing) -> Tensor:
    """The router's dense probabilities, or its weights divided by their sum; 0 without any. (B, E)

    Rows without an expert are 0.
    """
    weights_BE = routing.weights_BE
    total_B1 = weights_BE.sum(-1, keepdim=True)
    shares_BE = routing.probs_BE
    if shares_BE is None:
        shares_BE = weights_BE / total_B1.clamp(min=torch.finfo(weights_BE.dtype).tiny)
    return shares_BE.float() * routing.selected_BE.any(-1, keepdim=True)


def entropy(share_BE: Tensor) -> Tensor:
    """-sum p ln p per row in nats, in 0..ln E; NaN for a row of zeros. (B, E) -> (B,)"""
    found_B = -torch.xlogy(share_BE, share_BE).sum(-1)
    return torch.where(share_BE.sum(-1) > 0, found_B.clamp(min=0), torch.nan)


@torch.inference_mode()
def take_sample(
    artifact: Artifact,
    rows: Rows,
    split: str,
    *,
    most: int,
    seed: int,
    progress: Callable[[int], None] = lambda rows: None,
) -> Sample:
    """Evaluate at most `most` rows of a split, as `evaluate` does.

    For the whole split the metrics are those of `evaluate`.
    """
    model, config = artifact.model, artifact.config
    row_N = choose_rows(len(rows), most, config.model.eval_rows, seed)
    columns = take_rows(rows, row_N)
    evaluation = Evaluation(artifact.schema, config, artifact.calibration)
    batches = []
    model.eval()
    model.reseed(config.trainer.seed)
    for batch in EvalBatches(columns, config.eval_rows):
        output = model(batch.request)
        evaluation.update(output, batch.labels)
        batches.append({"logits_NT": output.logits_BT, **routed(output.routings)})
        progress(len(batch.labels))
    return Sample(
        columns=columns,
        split=split,
        split_rows=len(rows),
        evaluation=evaluation.result(split),
        **joined(batches),
    )


@dataclass(frozen=True)
class Options:
    """Options of `recsys-moe report`; None is the default."""

    data: Path | None = None
    split: str | None = None
    rows: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Run:
    """A run folder, and the output of its model on a split."""

    folder: Path
    """The run folder, or the model folder of a model without a run."""
    artifact: Artifact
    data: Path
    same_data: bool
    """Whether the data are the training data."""
    sample: Sample
    options: Options

    @property
    def tasks(self) -> list[str]:
        return [task.name for task in self.artifact.schema.tasks]

    def rows(self, split: str) -> Rows:
        """All of a split of the data."""
        return open_split(self.artifact, self.data, self.artifact.schema, split)

    def segments(self) -> dict[str, dict[str, Any]]:
        """Metrics of the sample by segment, as in `evaluate`."""
        columns, schema = self.sample.columns, self.artifact.schema
        segments = segments_of(self.artifact, self.rows("train"), schema)
        segments.update(columns.request, (self.sample.logits_NT, columns.labels))
        return segments.result()

    def curves(self) -> learning.LearningCurves | None:
        """None without metrics.csv, and before the end of the first epoch."""
        path = self.folder / epoch_metrics.EPOCH_METRICS
        if not path.is_file() or not (epochs := epoch_metrics.read_epochs(path)):
            return None
        tasks, config = self.artifact.schema.tasks, self.artifact.config
        monitor = find_monitor(config.trainer.monitor, self.artifact.schema)
        trained, _ = weighed_apart(config, tasks) or ("", "")
        return learning.learning_curves(epochs, tasks, monitor, trained)

    def some(self, most: int) -> tuple[Columns, Tensor]:
        """At most `most` rows of the sample drawn at random, and their ascending places."""
        generator = torch.Generator().manual_seed(self.options.seed)
        place_N = torch.randperm(self.sample.rows, generator=generator)[:most].sort().values
        return self.sample.columns.part(place_N), place_N

    def by_events(self) -> list[RoutingByEvents]:
        """Of tasks with enough rows; empty for a model that reads no events."""
        span_N2, tops = self.sample.columns.history, self.sample.top_NT.unbind(1)
        if span_N2 is None:
            return []
        experts, before_N = len(self.sample.either_E), span_N2[:, 1] - span_N2[:, 0]
        found = (
            routing_by_events(task, before_N, top_N, experts=experts)
            for task, top_N in zip(self.tasks, tops, strict=True)
        )
        return list(filter(None, found))

    def genres(self) -> list[genres.GenreBreakdown]:
        """Of tasks with enough rows; empty without genres."""
        known, tops = genres.genre_of(self.artifact.items), self.sample.top_NT.unbind(1)
        item_N, experts = self.sample.columns.item, len(self.sample.either_E)
        breakdowns = (
            genres.genre_breakdown(task, known, item_N, top_N, experts=experts)
            for task, top_N in zip(self.tasks, tops, strict=True)
        )
        return list(filter(None, breakdowns))


def look_at(path: Path, options: Options, progress: Progress) -> Run:
    """Load the model and evaluate the split once. Raises ConfigError and DataError."""
    split, most = options.split or "test", options.rows or 100_000
    if split not in SPLITS:
        raise ConfigError(f"--split must be one of {', '.join(SPLITS)}, got {split!r}")
    artifact = load_artifact(path)
    folder = find_artifact(path).resolve()
    data, schema = data_of(path, artifact, options.data)
    rows, train = (open_split(artifact, data, schema, name) for name in (split, "train"))
    with progress(f"evaluating {split}", min(most, len(rows))) as done:
        sample = take_sample(artifact, rows, split, most=most, seed=options.seed, progress=done)
    bounds = {"baselines": baselines(train, sample.columns, schema)}
    return Run(
        folder=folder.parent if (folder.parent / DATA_LOCK).is_file() else folder,
        artifact=artifact,
        data=data,
        same_data=schema == artifact.schema,
        sample=replace(sample, evaluation=sample.evaluation | bounds),
        options=options,
    )
