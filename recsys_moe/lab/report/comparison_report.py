"""The report of a comparison: its table, learning curves, costs and seeds, each run by name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from recsys_moe.files import sha256_file
from recsys_moe.lab.compare.results import Results
from recsys_moe.lab.compare.tables import notes_of
from recsys_moe.lab.report import comparison, plots_comparison
from recsys_moe.lab.report.comparison import METRICS, RESULTS, weights_of
from recsys_moe.lab.report.findings import worst_first
from recsys_moe.lab.report.page import Report, Section, Shown


def comparison_report(folder: Path, out: Path) -> Report:
    """`out`: where the report will lie; links to the run folders start there. Raises DataError."""
    results = comparison.read_results(folder)
    comparison.check_runs(folder, results)
    seeds = f"{len(results.seeds)} {'seed' if len(results.seeds) == 1 else 'seeds'}"
    name = f"Comparison {folder.resolve().name}"
    sources = [RESULTS, *(f"{run.run}/{METRICS}" for run in results.runs)]
    links = [quote(Path(os.path.relpath(folder / run.run, out)).as_posix()) for run in results.runs]
    return Report(
        title=f"Routers on {results.data}",
        subtitle=f"{name}: {results.split} split, {seeds} (protocol {results.protocol})",
        summary="comparison/summary.html",
        values={"results": results, "ranked": comparison.ranked, "weights_of": weights_of},
        findings=worst_first(comparison.comparison_findings(results)),
        sections=[
            *(_group(folder, results, number) for number in range(len(results.groups))),
            _section("runs", "Runs", "runs", results=results, links=links),
            _section("notes", "Notes and tests", "notes", notes=notes_of(results)),
        ],
        provenance={
            "kind": "comparison",
            "comparison": str(folder),
            "files": {name: sha256_file(folder / name) for name in sources},
        },
    )


def _section(
    key: str, title: str, name: str, figures: dict[str, Shown] | None = None, **values: Any
) -> Section:
    template = f"comparison/{name}.html"
    return Section(key=key, title=title, template=template, figures=figures or {}, values=values)


def _group(folder: Path, results: Results, number: int) -> Section:
    group = results.groups[number]
    key, title = f"group-{number}", f"Task weights: {weights_of(group)}"
    if not any(row.cells for row in group.rows):
        return _section(key, title, "group")
    curves, costs = comparison.curves(folder, results, group), comparison.costs(group)
    figures = {
        "learning": Shown(
            f"learning-{number}",
            "Learning curves",
            ("metrics.csv of each run",),
            curves,
            plots_comparison.learning,
        )
    }
    if costs.router:
        figures["costs"] = Shown(
            f"costs-{number}", "Loss and cost", (RESULTS,), costs, plots_comparison.costs
        )
    for column in (column for column in results.columns if column.better):
        name = comparison.seeds_figure(number, column.name)
        seeds = comparison.seeds(results, group, column)
        title_of = f"Seeds: {column.title}"
        figures[name] = Shown(name, title_of, (RESULTS,), seeds, plots_comparison.seeds)
    points = zip(costs.router, costs.loss, costs.cost, strict=True)
    words = [f"{router} ({loss:.4f} at {cost:.2f})" for router, loss, cost in points]
    return _section(
        key,
        title,
        "group",
        figures,
        group=group,
        columns=results.columns,
        beside=[c for c in results.columns if any(c.name in row.paper for row in group.rows)],
        idle={
            row.contender: [len(comparison.idle_experts(run)) for run in runs]
            for row in group.rows
            if (runs := comparison.runs_of(results, row))
        },
        unbeaten=[words[n] for n in costs.best],
    )
