"""The report of a comparison: its table, learning curves, costs and seeds, each run by name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from recsys_moe.files import sha256_file
from recsys_moe.lab.compare.results import Column, Group, Results, Row, RunRecord
from recsys_moe.lab.compare.significance import Spread
from recsys_moe.lab.compare.tables import notes_of
from recsys_moe.lab.report import comparison, plots_comparison
from recsys_moe.lab.report.findings import join, worst_first
from recsys_moe.lab.report.page import Report, Section, Shown


def comparison_report(folder: Path, out: Path) -> Report:
    """`out`: where the report will lie; links to the run folders start there. Raises DataError."""
    results = comparison.read_results(folder)
    comparison.check_runs(folder, results)
    seeds = f"{len(results.seeds)} {'seed' if len(results.seeds) == 1 else 'seeds'}"
    return Report(
        title=f"Routers on {results.data}",
        subtitle=f"Comparison {folder.resolve().name}: {results.split} split, {seeds} "
        f"(protocol {results.protocol})",
        tiles=_tiles(results),
        facts=_facts(results),
        findings=worst_first(comparison.comparison_findings(results)),
        sections=[
            *(_group(folder, results, number) for number in range(len(results.groups))),
            _runs(folder, results, out),
            _notes(results),
        ],
        provenance={
            "kind": "comparison",
            "comparison": str(folder),
            "files": {
                comparison.RESULTS: sha256_file(folder / comparison.RESULTS),
                **{
                    f"{run.run}/{comparison.METRICS}": sha256_file(
                        folder / run.run / comparison.METRICS
                    )
                    for run in results.runs
                },
            },
        },
    )


def _tiles(results: Results) -> list[tuple[str, str, str]]:
    """The best mean of all routers per tested column and weights."""
    tiles = []
    for group in results.groups:
        for column in (column for column in results.columns if column.better):
            rows = [row for row in group.rows if column.name in row.cells]
            if rows:
                sign = -1 if column.better == "higher" else 1
                best = min(rows, key=lambda row: sign * row.cells[column.name].mean)
                words = (
                    f"{best.router}{'' if best.k_sparse else ' (not k-sparse)'}, {weights(group)}"
                )
                value = f"{best.cells[column.name].mean:.{column.digits}f}"
                tiles.append((f"best {column.title}", value, words))
    return tiles


def _facts(results: Results) -> dict[str, str]:
    routers = {row.router for group in results.groups for row in group.rows}
    done, missing = len(results.runs), len(results.missing)
    return {
        "data": f"{results.data} ({results.protocol})",
        "split": results.split,
        "routers": str(len(routers)),
        "task weights": str(len(results.groups)),
        "seeds": join(results.seeds),
        "runs": f"{done} of {done + missing} finished",
    }


def weights(group: Group) -> str:
    return ", ".join(f"{task} {weight:g}" for task, weight in group.weights.items())


def _group(folder: Path, results: Results, number: int) -> Section:
    group = results.groups[number]
    key, title = f"group-{number}", f"Task weights: {weights(group)}"
    template = "comparison/group.html"
    if not any(row.cells for row in group.rows):
        return Section(key=key, title=title, template=template)
    curves, costs = comparison.curves(folder, results, group), comparison.costs(group)
    seeds = {
        column.name: _seeds(results, number, column) for column in results.columns if column.better
    }
    figures = {"learning": _learning(curves, number)}
    if costs.router:
        figures["costs"] = _costs(costs, number)
    return Section(
        key=key,
        title=title,
        template=template,
        figures={**figures, **{f"seeds {name}": shown for name, shown in seeds.items()}},
        values={
            **_table(results, group),
            "best_curve": best_curve(curves),
            "unbeaten": [
                f"{costs.router[n]} ({costs.loss[n]:.4f} at {costs.cost[n]:.2f})"
                for n in costs.best
            ],
            "seeds": list(seeds.values()),
        },
    )


def _table(results: Results, group: Group) -> dict[str, list[Any]]:
    """`header` and `lines`."""
    columns = results.columns
    beside = [c for c in columns if any(c.name in row.paper for row in group.rows)]
    titles = [column.title for column in columns]
    papers = [f"paper {column.title}" for column in beside]
    return {
        "header": ["router", "k-sparse", "runs", *titles, "idle experts", *papers],
        "lines": [_line(results, row, beside) for row in group.rows],
    }


@dataclass(frozen=True)
class Line:
    """A router in the table."""

    router: str
    sparse: str
    runs: int
    cells: list[tuple[str, bool]]
    """Text per column, and whether it is bold."""
    more: list[str]
    """Mean number of idle experts, then the columns of the paper."""


def _line(results: Results, row: Row, beside: list[Column]) -> Line:
    idle = [len(comparison.idle_experts(run)) for run in comparison.runs_of(results, row)]
    return Line(
        router=row.router,
        sparse="yes" if row.k_sparse else row.experts,
        runs=row.runs,
        cells=[
            (cell_text(row.cells.get(column.name), column), column.name in row.bold)
            for column in results.columns
        ],
        more=[
            f"{sum(idle) / len(idle):.1f}" if idle else "-",
            *(cell_text(row.paper.get(column.name), column) for column in beside),
        ],
    )


def cell_text(cell: Spread | None, column: Column) -> str:
    if cell is None:
        return "-"
    if cell.standard_error is None or not column.digits:
        return f"{cell.mean:,.{column.digits}f}"
    return f"{cell.mean:.{column.digits}f} +- {cell.standard_error:.{column.digits}f}"


@dataclass(frozen=True)
class BestCurve:
    """The router and epoch with the lowest mean validation loss."""

    router: str
    epoch: int
    loss: float


def best_curve(curves: comparison.Curves) -> BestCurve:
    """Of at least one router."""
    best = min(curves.routers, key=lambda router: min(router.mean))
    loss = min(best.mean)
    return BestCurve(best.router, best.epochs[best.mean.index(loss)], loss)


def _learning(curves: comparison.Curves, number: int) -> Shown:
    source = ("metrics.csv of each run",)
    return Shown(f"learning-{number}", "Learning curves", source, curves, plots_comparison.learning)


def _costs(costs: comparison.Costs, number: int) -> Shown:
    source = (comparison.RESULTS,)
    return Shown(f"costs-{number}", "Loss and cost", source, costs, plots_comparison.costs)


def _seeds(results: Results, number: int, column: Column) -> Shown:
    data = comparison.seeds(results, results.groups[number], column)
    name, source = comparison.seeds_figure(number, column.name), (comparison.RESULTS,)
    return Shown(name, f"Seeds: {column.title}", source, data, plots_comparison.seeds)


def _runs(folder: Path, results: Results, out: Path) -> Section:
    columns = [column for column in results.columns if column.name != "parameters"]
    return Section(
        key="runs",
        title="Runs",
        template="comparison/runs.html",
        values={
            "header": ["run", "seed", "best epoch", "epochs", *(c.title for c in columns)],
            "lines": [
                {
                    "name": Path(run.run).name,
                    "link": _link(folder, run, out),
                    "cells": [run.seed, run.best_epoch, run.epochs]
                    + [_value(run.values.get(column.name), column) for column in columns],
                }
                for run in results.runs
            ],
            "missing": results.missing,
        },
    )


def _link(folder: Path, run: RunRecord, out: Path) -> str:
    return quote(Path(os.path.relpath(folder / run.run, out)).as_posix())


def _value(value: float | None, column: Column) -> str:
    return "-" if value is None else f"{value:,.{column.digits}f}"


def _notes(results: Results) -> Section:
    return Section(
        key="notes",
        title="Notes and tests",
        template="comparison/notes.html",
        values={"notes": notes_of(results)},
    )
