"""What a run's figures show: reads the run folder and looks at a split."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recsys_moe.artifact.evaluate import data_of
from recsys_moe.artifact.model_folder import MANIFEST, Artifact, find_artifact, load_artifact
from recsys_moe.artifact.routing_history import FILE, read_routing
from recsys_moe.artifact.run_folder import DATA_LOCK
from recsys_moe.config.overview import overviews
from recsys_moe.data.columns import Columns
from recsys_moe.data.streaming import open_rows, rows_within
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.files import sha256_file
from recsys_moe.lab.report import experts, findings, learning, specialisation
from recsys_moe.lab.report.findings import Finding
from recsys_moe.lab.report.quality import Quality, quality
from recsys_moe.lab.report.sample import Sample, take_sample
from recsys_moe.schema import SCHEMA_FILE, SPLITS, Schema, Task

logger = logging.getLogger("recsys_moe.report")

MAP_ROWS = 3000
"""Examples on the map."""
LIKENESS_ROWS = 2048
"""Rows on which experts are compared with each other."""

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@dataclass(frozen=True)
class RunFigures:
    """The data of every figure of a run; None where the run folder does not have it."""

    name: str
    artifact: Artifact
    data: Path
    sample: Sample
    curves: learning.LearningCurves | None
    consistency: learning.Consistency | None
    load: experts.ExpertLoad
    sharpness: experts.Sharpness
    likeness: experts.Likeness
    quality: dict[str, Quality]
    map: specialisation.ExpertMap
    genres: list[specialisation.GenreBreakdown]
    recorded: dict[str, Any] | None
    """evaluation/<split>.json of the run folder."""
    same_data: bool
    """Are the data those of the training?"""

    @property
    def tasks(self) -> tuple[Task, ...]:
        return self.artifact.schema.tasks


@dataclass(frozen=True)
class Options:
    """What `recsys-moe report` was asked."""

    data: Path | None = None
    split: str = "test"
    rows: int = 100_000
    seed: int = 0
    projection: specialisation.Projection = "pca"


def run_figures(path: Path, options: Options, progress: Progress) -> RunFigures:
    """Load the model, run the split through it once, and compute every figure."""
    if options.split not in SPLITS:
        raise ConfigError(f"--split must be one of {', '.join(SPLITS)}, got {options.split!r}")
    if options.projection == "umap":
        specialisation.load_umap()  # before anything that takes time
    artifact = load_artifact(path)
    run, tasks = _run_folder(path), artifact.schema.tasks
    names = [task.name for task in tasks]
    data, schema = data_of(path, artifact, options.data)
    most = rows_within(schema, artifact.config.data.max_memory_mb)
    rows = open_rows(data, schema, options.split, most)
    with progress(f"evaluating {options.split}", min(options.rows, len(rows))) as done:
        sample = take_sample(
            artifact, rows, options.split, most=options.rows, seed=options.seed, progress=done
        )
    logger.info("comparing experts and mapping examples")
    kept = [min(router.kept, router.shape.num_experts) for router in artifact.model.routers]
    place_N = _some(sample.rows, MAP_ROWS, options.seed)
    shown = _columns(sample, place_N)
    with torch.inference_mode():
        mapped = artifact.model.encode(shown.user, shown.item), sample.top_NT[place_N]
    compared = _columns(sample, _some(sample.rows, LIKENESS_ROWS, options.seed))
    epochs = learning.read_epochs(run / "metrics.csv") if (run / "metrics.csv").is_file() else []
    tested = {task.name: quality(artifact, sample, t) for t, task in enumerate(tasks)}
    return RunFigures(
        name=run.resolve().name,
        artifact=artifact,
        data=data,
        sample=sample,
        curves=learning.learning_curves(epochs, tasks) if epochs else None,
        consistency=_consistency(run, tasks),
        load=experts.expert_load(sample, names),
        sharpness=experts.sharpness(sample, names, kept),
        likeness=experts.likeness(artifact, compared),
        quality={name: one for name, one in tested.items() if one is not None},
        map=specialisation.expert_map(
            *mapped, names, projection=options.projection, seed=options.seed
        ),
        genres=list(_genres(artifact, sample, names)),
        recorded=_recorded(run, options.split),
        same_data=schema == artifact.schema,
    )


def _run_folder(path: Path) -> Path:
    """The run folder of a run or of its model/; a model folder alone stands for itself."""
    folder = find_artifact(path).resolve()
    return folder.parent if (folder.parent / DATA_LOCK).is_file() else folder


def _some(rows: int, most: int, seed: int) -> torch.Tensor:
    """Ascending places of at most `most` rows drawn at random."""
    order_N = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    return order_N[:most].sort().values


def _columns(sample: Sample, place_N: torch.Tensor) -> Columns:
    return Columns(*sample.columns.take(place_N))


def _consistency(run: Path, tasks: tuple[Task, ...]) -> learning.Consistency | None:
    if not (run / FILE).is_file():
        return None
    steady = learning.consistency(read_routing(run / FILE), tasks)
    return steady if steady.epochs else None


def _genres(
    artifact: Artifact, sample: Sample, names: list[str]
) -> Iterator[specialisation.GenreBreakdown]:
    table = specialisation.genre_table(artifact.items)
    if table is None:
        return
    genres, has_IG = table
    has_NG, count = has_IG[sample.columns.item.long()], artifact.config.model.num_experts
    for name, top_N in zip(names, sample.top_NT.unbind(1), strict=True):
        one = specialisation.genre_breakdown(name, genres, has_NG, top_N, experts=count)
        if one is not None:
            yield one


def _recorded(run: Path, split: str) -> dict[str, Any] | None:
    path = run / "evaluation" / f"{split}.json"
    if not path.is_file():
        return None
    try:
        evaluation: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        float(evaluation["loss"])
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(f"{path} is damaged: {error}; run `recsys-moe evaluate` again") from None
    return evaluation


def run_findings(run: RunFigures) -> Iterator[Finding]:
    """Everything worth a sentence."""
    yield from findings.expert_findings(run.load)
    yield from findings.likeness_findings(run.likeness)
    if run.consistency:
        yield from findings.consistency_findings(run.consistency)
    for task, one in run.quality.items():
        yield from findings.quality_findings(task, one)
    yield from _against_the_mean(run)
    if run.curves:
        asked = run.artifact.config.trainer.max_epochs
        yield from findings.learning_findings(run.curves, asked)
    yield from findings.sharpness_findings(run.sharpness)
    yield from _about_the_rows(run)


def _against_the_mean(run: RunFigures) -> Iterator[Finding]:
    for t, task in enumerate(run.tasks):
        rmse = run.sample.evaluation["tasks"][task.name].get("rmse")
        if rmse is not None:
            labels_N = run.sample.columns.labels[:, t]
            spread = float(labels_N[~labels_N.isnan()].double().std(correction=0))
            one = findings.spread_finding(task.name, rmse, spread)
            yield from [one] if one else []


def _about_the_rows(run: RunFigures) -> Iterator[Finding]:
    sample, schema = run.sample, run.artifact.schema
    if not run.same_data:
        text = "These are not the data of the training: the model may know some of these rows."
        yield Finding("warning", text, "")
    elif sample.is_whole and run.recorded:
        one = findings.difference_finding(sample.evaluation, run.recorded)
        yield from [one] if one else []
    pairs = (sample.columns.user, schema.user), (sample.columns.item, schema.item)
    for index_N, feature in pairs:
        unseen = float((index_N == feature.size).double().mean())
        if unseen:
            share = findings.percent(unseen)
            yield Finding("note", f"{share} of rows have a {feature.name} unseen in training.", "")


def router_words(run: RunFigures) -> str:
    """`moesart, k = 2 of 16 experts`"""
    config = run.artifact.config
    name = config.model.router.name
    visited = overviews(config)[name].inference or "?"
    words = f"k = {visited}" if visited.isdigit() else visited
    return f"{name}, {words} of {config.model.num_experts} experts"


def provenance(path: Path, figures: RunFigures, options: Options) -> dict[str, Any]:
    """Files that the numbers come from, each with its SHA-256."""
    run, model = _run_folder(path), find_artifact(path)
    files = [run / "metrics.csv", run / FILE, run / "evaluation" / f"{options.split}.json"]
    sources = {file.name: sha256_file(file) for file in files if file.is_file()}
    sources[f"model/{MANIFEST}"] = sha256_file(model / MANIFEST)
    schema = figures.data / SCHEMA_FILE
    return {
        "kind": "run",
        "run": str(path),
        "files": sources,
        "data": {"name": Schema.load(figures.data).name, SCHEMA_FILE: sha256_file(schema)},
        "split": options.split,
        "rows": figures.sample.rows,
        "split_rows": figures.sample.split_rows,
        "seed": options.seed,
        "evaluation": figures.sample.evaluation,
    }
