"""A run folder, what its model does on a split, and what is compared and mapped of it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recsys_moe.artifact.evaluate import data_of
from recsys_moe.artifact.model_folder import Artifact, find_artifact, load_artifact
from recsys_moe.artifact.routing_history import FILE, read_routing
from recsys_moe.artifact.run_folder import DATA_LOCK
from recsys_moe.data.columns import Columns
from recsys_moe.data.streaming import open_rows, rows_within
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.lab.report import experts, learning, specialisation
from recsys_moe.lab.report.sample import Sample, take_sample
from recsys_moe.schema import SPLITS

logger = logging.getLogger("recsys_moe.report")

MAP_ROWS = 3000
"""Examples on the map."""
LIKENESS_ROWS = 2048
"""Rows on which experts are compared with each other."""

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True)
class Options:
    """What `recsys-moe report` was asked; None is the default."""

    data: Path | None = None
    split: str | None = None
    rows: int | None = None
    seed: int = 0
    map: str = "pca"


@dataclass(frozen=True)
class Run:
    """A run folder, and what its model does on a split."""

    folder: Path
    """Of the run; of a model without one that of the model."""
    artifact: Artifact
    data: Path
    same_data: bool
    """Are the data those of the training?"""
    sample: Sample
    options: Options

    @property
    def tasks(self) -> list[str]:
        return [task.name for task in self.artifact.schema.tasks]

    def curves(self) -> learning.LearningCurves | None:
        """None without metrics.csv, and before the end of the first epoch."""
        path = self.folder / "metrics.csv"
        if not path.is_file() or (rows := learning.read_epochs(path)).empty:
            return None
        return learning.learning_curves(rows, self.artifact.schema.tasks)

    def consistency(self) -> learning.Consistency | None:
        """None without a record of two epochs."""
        if not (self.folder / FILE).is_file():
            return None
        steady = learning.consistency(read_routing(self.folder / FILE), self.artifact.schema.tasks)
        return steady if steady.epochs else None

    def likeness(self) -> experts.Likeness:
        return experts.likeness(self.artifact, self._some(LIKENESS_ROWS)[0])

    @torch.inference_mode()
    def map(self) -> specialisation.ExpertMap:
        shown, place_N = self._some(MAP_ROWS)
        x_ND = self.artifact.model.encode(shown.user, shown.item)
        top_NT, options = self.sample.top_NT[place_N], self.options
        return specialisation.expert_map(
            x_ND, top_NT, self.tasks, projection=options.map, seed=options.seed
        )

    def _some(self, most: int) -> tuple[Columns, torch.Tensor]:
        """At most `most` rows of the sample drawn at random, and their ascending places."""
        generator = torch.Generator().manual_seed(self.options.seed)
        place_N = torch.randperm(self.sample.rows, generator=generator)[:most].sort().values
        return Columns(*self.sample.columns.take(place_N)), place_N

    def genres(self) -> list[specialisation.GenreBreakdown]:
        """Of the tasks with enough rows; none where the items have no genres."""
        table = specialisation.genre_table(self.artifact.items)
        if table is None:
            return []
        genres, has_IG = table
        has_NG, count = has_IG[self.sample.columns.item.long()], len(self.sample.either_E)
        breakdowns = [
            specialisation.genre_breakdown(task, genres, has_NG, top_N, experts=count)
            for task, top_N in zip(self.tasks, self.sample.top_NT.unbind(1), strict=True)
        ]
        return [breakdown for breakdown in breakdowns if breakdown is not None]

    def recorded(self) -> dict[str, Any] | None:
        """evaluation/<split>.json of the run folder, where there is one."""
        path = self.folder / "evaluation" / f"{self.sample.split}.json"
        if not path.is_file():
            return None
        try:
            evaluation: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            float(evaluation["loss"])
        except (ValueError, LookupError, TypeError) as error:
            raise DataError(
                f"{path} is damaged: {error}; run `recsys-moe evaluate` again"
            ) from None
        return evaluation


def look_at(path: Path, options: Options, progress: Progress) -> Run:
    """Load the model and run the split through it once. Raises ConfigError and DataError."""
    split, most = options.split or "test", options.rows or 100_000
    for name, value, known in (
        ("split", split, SPLITS),
        ("map", options.map, specialisation.PROJECTIONS),
    ):
        if value not in known:
            raise ConfigError(f"--{name} must be one of {', '.join(known)}, got {value!r}")
    if options.map == "umap":
        specialisation.load_umap()  # before anything that takes time
    artifact = load_artifact(path)
    folder = find_artifact(path).resolve()
    data, schema = data_of(path, artifact, options.data)
    rows = open_rows(data, schema, split, rows_within(schema, artifact.config.data.max_memory_mb))
    with progress(f"evaluating {split}", min(most, len(rows))) as done:
        sample = take_sample(artifact, rows, split, most=most, seed=options.seed, progress=done)
    return Run(
        folder=folder.parent if (folder.parent / DATA_LOCK).is_file() else folder,
        artifact=artifact,
        data=data,
        same_data=schema == artifact.schema,
        sample=sample,
        options=options,
    )
