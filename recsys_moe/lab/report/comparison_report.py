"""The report of a comparison: its table, learning curves, costs and seeds, each run by name."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from recsys_moe.artifact.epoch_metrics import EPOCH_METRICS
from recsys_moe.artifact.idle import IDLE_WORDS
from recsys_moe.files import sha256_file
from recsys_moe.lab.compare.results import Results
from recsys_moe.lab.compare.tables import notes_of, weights_of
from recsys_moe.lab.report import comparison, plots_comparison
from recsys_moe.lab.report.comparison import RESULTS, idle_in, runs_of
from recsys_moe.lab.report.page import Report, Section, Shown


def comparison_report(folder: Path, out: Path) -> Report:
    """`out`: where the report will lie; links to the run folders start there. Raises DataError."""
    results = comparison.read_results(folder)
    seeds = f"{len(results.seeds)} {'seed' if len(results.seeds) == 1 else 'seeds'}"
    name = f"Comparison {folder.resolve().name}"
    sources = [RESULTS, *(f"{run.run}/{EPOCH_METRICS}" for run in results.runs)]
    links = [quote(Path(os.path.relpath(folder / run.run, out)).as_posix()) for run in results.runs]
    values = {
        "results": results,
        "notes": notes_of(results),
        "links": links,
        "ranked": comparison.ranked,
        "weights_of": weights_of,
        "idle_in": idle_in,
    }
    return Report(
        title=f"Routers on {results.data}",
        subtitle=f"{name}: {results.split} split, {seeds} (protocol {results.protocol})",
        summary="comparison/summary.html",
        values=values,
        findings=comparison.comparison_findings(results),
        sections=[
            *(_group(folder, results, number) for number in range(len(results.groups))),
            Section("runs", "Runs", "comparison/runs.html", {}, values),
            Section("notes", "Notes and tests", "comparison/notes.html", {}, values),
        ],
        provenance={
            "kind": "comparison",
            "comparison": str(folder),
            "files": {name: sha256_file(folder / name) for name in sources},
        },
    )


def _group(folder: Path, results: Results, number: int) -> Section:
    group = results.groups[number]
    heading = f"group-{number}", f"Task weights: {weights_of(group)}", "comparison/group.html"
    if not any(row.cells for row in group.rows):
        return Section(*heading)
    curves, costs = comparison.curves(folder, results, group), comparison.costs(group)
    name, source = f"learning-{number}", ("metrics.csv of each run",)
    learning = Shown(name, "Learning curves", source, curves, plots_comparison.learning)
    figures, source = {"learning": learning}, (RESULTS,)
    if costs.router:
        name = f"costs-{number}"
        figures["costs"] = Shown(name, "Loss and cost", source, costs, plots_comparison.costs)
    for column in (column for column in results.columns if column.better):
        name, title = comparison.seeds_figure(number, column.name), f"Seeds: {column.title}"
        seeds = comparison.seeds(results, group, column)
        figures[name] = Shown(name, title, source, seeds, plots_comparison.seeds)
    values = {
        "group": group,
        "idle_words": IDLE_WORDS,
        "columns": results.columns,
        "idle": {
            row.contender: [len(idle_in(run)) for run in runs_of(results, row)]
            for row in group.rows
        },
    }
    return Section(*heading, figures=figures, values=values)
