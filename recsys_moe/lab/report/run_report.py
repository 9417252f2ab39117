"""The report of one run: its key numbers, its facts and its sections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recsys_moe.artifact.model_folder import MANIFEST, find_artifact
from recsys_moe.artifact.routing_history import FILE
from recsys_moe.config.overview import overviews
from recsys_moe.files import sha256_file
from recsys_moe.lab.report import findings, run_sections
from recsys_moe.lab.report.experts import ExpertLoad, expert_load
from recsys_moe.lab.report.findings import Finding
from recsys_moe.lab.report.learning import LearningCurves
from recsys_moe.lab.report.page import Report
from recsys_moe.lab.report.run import Options, Progress, Run, look_at
from recsys_moe.schema import SCHEMA_FILE, Schema

HEADLINES = {"binary": ("auc", "higher is better"), "regression": ("rmse", "lower is better")}
"""Per kind of task the metric of its tile."""


def run_report(path: Path, options: Options, progress: Progress) -> Report:
    """Raises ConfigError and DataError."""
    run = look_at(path, options, progress)
    sample, load, curves = run.sample, expert_load(run.sample, run.tasks), run.curves()
    genres = run.genres()
    sections = [
        run_sections.learning(run, curves),
        run_sections.experts(run, load, genres),
        run_sections.routing(run),
        run_sections.quality(run),
        run_sections.specialisation(run, genres),
    ]
    what = "all" if sample.is_whole else f"a sample of {sample.rows:,}"
    rows = f"{what} of the {sample.split_rows:,} rows"
    return Report(
        title=f"Run {run.folder.name}",
        subtitle=f"{run.artifact.schema.name}, {sample.split} split ({rows})",
        tiles=_tiles(run, load),
        facts=_facts(run, curves),
        findings=findings.worst_first(
            [*(one for section in sections for one in section.findings), *_about_the_rows(run)]
        ),
        sections=sections,
        provenance=_provenance(path, run),
    )


def _tiles(run: Run, load: ExpertLoad) -> list[tuple[str, str, str]]:
    """Loss and the headline metric of each task, then what the experts do."""
    result = run.sample.evaluation
    shown = [("loss", f"{result['loss']:.4f}", "task-weighted, without penalties; lower is better")]
    for task in run.artifact.schema.tasks:
        metrics = result["tasks"][task.name]
        key, better = HEADLINES[task.kind]
        value = "-" if metrics[key] is None else f"{metrics[key]:.4f}"
        shown.append((f"{task.name} {key.upper()}", value, f"{metrics['rows']:,} rows; {better}"))
    cost = f"{result['experts_per_example']:.2f}"
    shown.append(("experts per example", cost, f"of {len(load.either)}; tasks share an expert"))
    words = findings.named(load.idle) if load.idle else "every expert is used"
    return [*shown, ("idle experts", str(len(load.idle)), words)]


def _facts(run: Run, curves: LearningCurves | None) -> dict[str, str]:
    config, schema = run.artifact.config, run.artifact.schema
    trained = f"{len(curves.epochs)}, best: {curves.best_epoch}" if curves else "not on record"
    router = config.model.router.name
    visited = overviews(config)[router].inference or "?"
    words = f"k = {visited}" if visited.isdigit() else visited
    return {
        "router": f"{router}, {words} of {config.model.num_experts} experts",
        "data": f"{schema.name} ({schema.protocol})",
        "users and items": f"{schema.user.size:,} and {schema.item.size:,}",
        "training rows": f"{schema.rows.get('train', 0):,}",
        "epochs": trained,
        "learning rate": f"{config.optim.lr:g}",
        "batch size": f"{config.trainer.batch_size:,}",
        "seed": str(config.trainer.seed),
        "parameters": f"{sum(p.numel() for p in run.artifact.model.parameters()):,}",
    }


def _about_the_rows(run: Run) -> Iterator[Finding]:
    """Other data than in training, another evaluation on record, users and items without a name."""
    sample, schema, recorded = run.sample, run.artifact.schema, run.recorded()
    if not run.same_data:
        text = "These are not the data of the training: the model may know some of these rows."
        yield Finding("warning", text, "")
    elif sample.is_whole and recorded:
        yield from findings.difference_findings(sample.evaluation, recorded)
    pairs = (sample.columns.user, schema.user), (sample.columns.item, schema.item)
    for index_N, feature in pairs:
        unseen = float((index_N == feature.size).double().mean())
        if unseen:
            share = findings.percent(unseen)
            yield Finding("note", f"{share} of rows have a {feature.name} unseen in training.", "")


def _provenance(path: Path, run: Run) -> dict[str, Any]:
    """Files that the numbers come from, each with its SHA-256."""
    names = ("metrics.csv", FILE, f"evaluation/{run.sample.split}.json")
    files = [run.folder / name for name in names]
    sources = {file.name: sha256_file(file) for file in files if file.is_file()}
    sources[f"model/{MANIFEST}"] = sha256_file(find_artifact(path) / MANIFEST)
    schema = run.data / SCHEMA_FILE
    return {
        "kind": "run",
        "run": str(path),
        "files": sources,
        "data": {"name": Schema.load(run.data).name, SCHEMA_FILE: sha256_file(schema)},
        "split": run.sample.split,
        "rows": run.sample.rows,
        "split_rows": run.sample.split_rows,
        "seed": run.options.seed,
        "evaluation": run.sample.evaluation,
    }
