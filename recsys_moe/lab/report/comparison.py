"""What the figures of a comparison show, from its results.json and the metrics.csv of its runs."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recsys_moe.errors import DataError
from recsys_moe.lab.compare.results import Column, Group, Results, Row, RunRecord, TTest, is_bold
from recsys_moe.lab.compare.significance import Spread
from recsys_moe.lab.report.experts import IDLE
from recsys_moe.lab.report.findings import Finding, join, named, slug
from recsys_moe.lab.report.learning import read_epochs

RESULTS = "results.json"
METRICS = "metrics.csv"


@dataclass(frozen=True)
class RouterCurve:
    """Validation loss of one router over the epochs, over its seeds."""

    router: str
    epochs: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    """Least and largest of the seeds."""
    runs: list[int]
    """Runs that reached the epoch; the others had stopped."""


@dataclass(frozen=True)
class Curves:
    """One RouterCurve per router with a finished run."""

    weights: dict[str, float]
    routers: list[RouterCurve]


@dataclass(frozen=True)
class Costs:
    """Loss against experts evaluated per example; one point per router with a finished run."""

    weights: dict[str, float]
    router: list[str]
    cost: list[float]
    """Distinct experts evaluated per example at inference."""
    loss: list[float]
    error: list[float]
    """Standard error over seeds; NaN for one run."""
    best: list[int]
    """Points that no other beats in both, the cheapest first."""


@dataclass(frozen=True)
class Seeds:
    """Every run's value of one column."""

    weights: dict[str, float]
    column: str
    title: str
    better: str
    values: dict[str, dict[int, float]]
    """By router, the best mean first, the value of each seed."""


def read_results(folder: Path) -> Results:
    """results.json of a comparison. Raises DataError when it is missing or damaged."""
    path = folder / RESULTS
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return Results(
            data=str(raw["data"]),
            protocol=str(raw["protocol"]),
            split=str(raw["split"]),
            seeds=tuple(raw["seeds"]),
            columns=[Column(**column) for column in raw["columns"]],
            groups=[_group(group) for group in raw["groups"]],
            runs=[_run(run) for run in raw["runs"]],
            missing=[str(name) for name in raw["missing"]],
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is damaged: {error}; run `recsys-moe compare` again") from None


def _group(raw: dict[str, Any]) -> Group:
    rows = [
        Row(
            **{
                **row,
                "bold": tuple(row["bold"]),
                "cells": {name: Spread(**cell) for name, cell in row["cells"].items()},
                "paper": {name: Spread(**cell) for name, cell in row["paper"].items()},
            }
        )
        for row in raw["rows"]
    ]
    return Group(raw["weights"], rows, [TTest(**test) for test in raw["tests"]])


def _run(raw: dict[str, Any]) -> RunRecord:
    """Its folder must lie inside the comparison, whatever the file says."""
    if Path(raw["run"]).is_absolute() or ".." in Path(raw["run"]).parts:
        raise ValueError(f"run {raw['run']!r} must lie below the comparison")
    return RunRecord(**raw)


def runs_of(results: Results, row: Row) -> list[RunRecord]:
    return [run for run in results.runs if run.contender == row.contender]


def check_runs(folder: Path, results: Results) -> None:
    """Raises DataError when a finished run is no longer where it was."""
    for path in (folder / run.run / METRICS for run in results.runs):
        if not path.is_file():
            raise DataError(
                f"{path} is missing, though {folder / RESULTS} counts its run; put the run folder "
                "back, or remove its rest and run `recsys-moe compare` again to train it anew"
            )


def curves(folder: Path, results: Results, group: Group) -> Curves:
    """Means over the runs that reached each epoch."""
    routers = []
    for row in group.rows:
        by_epoch: dict[int, list[float]] = {}
        for run in runs_of(results, row):
            for line in read_epochs(folder / run.run / METRICS):
                by_epoch.setdefault(int(line["epoch"]), []).append(line["val/loss"])
        if by_epoch:
            routers.append(_curve(row.router, dict(sorted(by_epoch.items()))))
    return Curves(group.weights, routers)


def _curve(router: str, by_epoch: dict[int, list[float]]) -> RouterCurve:
    values = list(by_epoch.values())
    return RouterCurve(
        router=router,
        epochs=list(by_epoch),
        mean=[statistics.fmean(losses) for losses in values],
        low=[min(losses) for losses in values],
        high=[max(losses) for losses in values],
        runs=[len(losses) for losses in values],
    )


def costs(group: Group) -> Costs:
    """Of the routers that have both a loss and a cost."""
    rows = [row for row in group.rows if {"loss", "experts_inference"} <= row.cells.keys()]
    cost = [row.cells["experts_inference"].mean for row in rows]
    loss = [row.cells["loss"].mean for row in rows]
    errors = [row.cells["loss"].standard_error for row in rows]
    return Costs(
        weights=group.weights,
        router=[row.router for row in rows],
        cost=cost,
        loss=loss,
        error=[math.nan if error is None else error for error in errors],
        best=_unbeaten(cost, loss),
    )


def _unbeaten(cost: list[float], loss: list[float]) -> list[int]:
    """Each has a lower loss than all that cost as much or less."""
    unbeaten: list[int] = []
    for place in sorted(range(len(cost)), key=lambda place: (cost[place], loss[place])):
        if not unbeaten or loss[place] < loss[unbeaten[-1]]:
            unbeaten.append(place)
    return unbeaten


def seeds(results: Results, group: Group, column: Column) -> Seeds:
    """Values where they are defined."""
    values: dict[str, dict[int, float]] = {}
    for row in group.rows:
        by_seed = {run.seed: run.values.get(column.name) for run in runs_of(results, row)}
        defined = {seed: value for seed, value in by_seed.items() if value is not None}
        if defined:
            values[row.router] = defined
    sign = -1 if column.better == "higher" else 1
    order = sorted(values, key=lambda name: sign * statistics.fmean(values[name].values()))
    return Seeds(
        group.weights,
        column.name,
        column.title,
        column.better or "",
        {name: values[name] for name in order},
    )


def seeds_figure(number: int, column: str) -> str:
    """Name of the figure of a column in group `number`: seeds-0-watch-auc."""
    return "-".join(["seeds", str(number), *map(slug, column.split("."))])


def idle_experts(run: RunRecord) -> list[int]:
    """Experts with less than IDLE of an even share of the visits in every task."""
    loads = [routing["load"] for routing in run.details["routing"].values()]
    experts = range(len(loads[0])) if loads else ()
    return [e for e in experts if all(load[e] <= IDLE / len(load) for load in loads)]


def comparison_findings(results: Results) -> Iterator[Finding]:
    """Who is best and how sure that is; what is missing; which routers have idle experts."""
    for number, group in enumerate(results.groups):
        yield from _verdicts(results, group, number)
    if results.missing:
        count = len(results.missing)
        text = f"{count} of {count + len(results.runs)} runs have not finished and are not counted."
        yield Finding("warning", text, "")
    if len(results.seeds) == 1:
        text = "There is one seed: no spread is known and nothing was tested."
        yield Finding("warning", text, "")
    for group in results.groups:
        yield from _idle(results, group)


def _idle(results: Results, group: Group) -> Iterator[Finding]:
    """One warning per router with idle experts, whatever the number of its seeds."""
    for row in group.rows:
        runs = runs_of(results, row)
        idle = {
            Path(run.run).name: idle_in_run for run in runs if (idle_in_run := idle_experts(run))
        }
        if idle:
            words = join(f"{named(experts)} in {run}" for run, experts in idle.items())
            text = (
                f"{row.router}{_weights(group)} has idle experts in {len(idle)} of {len(runs)} "
                f"{'run' if len(runs) == 1 else 'runs'} (below {IDLE:.0%} of an even share): "
                f"{words}."
            )
            yield Finding("warning", text, "")


def _verdicts(results: Results, group: Group, number: int) -> Iterator[Finding]:
    names = {row.contender: row.router for row in group.rows}
    titles = {column.name: column.title for column in results.columns}
    cells = {row.contender: row.cells for row in group.rows}
    for test in (test for test in group.tests if test.runner_up):
        best, other = (cells[key][test.column].mean for key in (test.best, test.other))
        p = "untested" if test.unpaired is None else f"p = {test.unpaired:.2g}"
        sure = "is significantly better than" if is_bold(test) else "is not shown to be better than"
        text = (
            f"{titles[test.column]}{_weights(group)}: of the k-sparse routers the best mean is "
            f"{names[test.best]} ({best:.4f}); it {sure} {names[test.other]} ({other:.4f}, {p})."
        )
        yield Finding("note", text, seeds_figure(number, test.column))


def _weights(group: Group) -> str:
    return f" (weights {', '.join(f'{t} {w:g}' for t, w in group.weights.items())})"
