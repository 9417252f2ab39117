"""The report of one run."""

from __future__ import annotations

from pathlib import Path

from recsys_moe.lab.report.findings import named, worst_first
from recsys_moe.lab.report.page import Report
from recsys_moe.lab.report.run_figures import (
    Options,
    Progress,
    RunFigures,
    provenance,
    router_words,
    run_figures,
    run_findings,
)
from recsys_moe.lab.report.run_sections import run_sections

HEADLINES = {"binary": ("auc", "higher is better"), "regression": ("rmse", "lower is better")}
"""Per kind of task the metric of its tile."""


def run_report(path: Path, options: Options, progress: Progress) -> Report:
    """Raises ConfigError and DataError."""
    run = run_figures(path, options, progress)
    what = "all" if run.sample.is_whole else f"a sample of {run.sample.rows:,}"
    rows = f"{what} of the {run.sample.split_rows:,} rows"
    return Report(
        title=f"Run {run.name}",
        subtitle=f"{run.artifact.schema.name}, {options.split} split ({rows})",
        tiles=_tiles(run),
        facts=_facts(run),
        findings=worst_first(run_findings(run)),
        sections=run_sections(run),
        provenance=provenance(path, run, options),
    )


def _tiles(run: RunFigures) -> list[tuple[str, str, str]]:
    """Loss and the headline metric of each task, then what the experts do."""
    result = run.sample.evaluation
    shown = [("loss", f"{result['loss']:.4f}", "task-weighted, without penalties; lower is better")]
    for task in run.tasks:
        metrics = result["tasks"][task.name]
        key, better = HEADLINES[task.kind]
        value = "-" if metrics[key] is None else f"{metrics[key]:.4f}"
        shown.append((f"{task.name} {key.upper()}", value, f"{metrics['rows']:,} rows; {better}"))
    cost = result["experts_per_example"]
    experts = run.artifact.config.model.num_experts
    shown.append(("experts per example", f"{cost:.2f}", f"of {experts}; tasks share an expert"))
    idle = run.load.idle
    words = named(idle) if idle else "every expert is used"
    return [*shown, ("idle experts", str(len(idle)), words)]


def _facts(run: RunFigures) -> dict[str, str]:
    config, schema = run.artifact.config, run.artifact.schema
    curves = run.curves
    trained = f"{len(curves.epochs)}, best: {curves.best_epoch}" if curves else "not on record"
    return {
        "router": router_words(run),
        "data": f"{schema.name} ({schema.protocol})",
        "users and items": f"{schema.user.size:,} and {schema.item.size:,}",
        "training rows": f"{schema.rows.get('train', 0):,}",
        "epochs": trained,
        "learning rate": f"{config.optim.lr:g}",
        "batch size": f"{config.trainer.batch_size:,}",
        "seed": str(config.trainer.seed),
        "parameters": f"{sum(p.numel() for p in run.artifact.model.parameters()):,}",
    }
