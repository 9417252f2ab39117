"""A run folder, and what its model says of a split. Axes: N rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recsys_moe.artifact import epoch_metrics
from recsys_moe.artifact.baselines import baselines
from recsys_moe.artifact.evaluate import data_of, open_split, segments_of
from recsys_moe.artifact.manifest import find_artifact
from recsys_moe.artifact.model_folder import Artifact, load_artifact
from recsys_moe.artifact.monitor import find_monitor
from recsys_moe.artifact.run_folder import DATA_LOCK
from recsys_moe.config.settings import weighed_apart
from recsys_moe.data.columns import Rows
from recsys_moe.data.rows import Columns
from recsys_moe.errors import ConfigError
from recsys_moe.lab.report import genres, learning
from recsys_moe.lab.report.sample import Sample, take_sample
from recsys_moe.lab.report.timelines import RoutingByEvents, routing_by_events
from recsys_moe.schema import SPLITS

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


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
