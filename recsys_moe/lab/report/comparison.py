"""The data of a comparison's figures, from its results.json and the metrics.csv of its runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import TypeAdapter

from recsys_moe.artifact.epoch_metrics import EPOCH_METRICS, read_epochs, validation_losses
from recsys_moe.artifact.idle import idle_experts
from recsys_moe.errors import DataError
from recsys_moe.lab.compare.columns import Column
from recsys_moe.lab.compare.results import (
    Group,
    Results,
    Row,
    RunRecord,
    TTest,
    is_bold,
    values_by_seed,
)
from recsys_moe.lab.compare.tables import weights_of
from recsys_moe.lab.report.findings import Finding, join, note, slug, warning, worst_first

RESULTS = "results.json"


@dataclass(frozen=True)
class RouterCurve:
    """Validation loss of one router per epoch: mean, least and largest of the seeds."""

    router: str
    epochs: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    runs: list[int]
    """Runs that reached the epoch; the others had stopped."""


@dataclass(frozen=True)
class Curves:
    """One RouterCurve per router with a finished run."""

    routers: list[RouterCurve]

    @property
    def best(self) -> tuple[float, str, int]:
        """The lowest mean loss, its router and epoch; of at least one router."""
        best = min(self.routers, key=lambda router: min(router.mean))
        loss = min(best.mean)
        return loss, best.router, best.epochs[best.mean.index(loss)]


@dataclass(frozen=True)
class Costs:
    """Loss against distinct experts evaluated per example at inference; a point per router."""

    router: list[str]
    cost: list[float]
    loss: list[float]
    error: list[float]
    """Standard error over seeds; NaN for one run."""
    best: list[int]
    """The Pareto front, the cheapest first."""


@dataclass(frozen=True)
class Seeds:
    """Every run's value of one column."""

    column: Column
    values: dict[str, dict[int, float]]
    """By router, the best mean first, the value of each seed."""


def read_results(folder: Path) -> Results:
    """results.json of a comparison.

    Raises DataError if it is damaged or a finished run is missing.
    """
    path = folder / RESULTS
    try:
        results = TypeAdapter(Results).validate_json(path.read_bytes())
        for run in results.runs:  # inside the comparison, whatever the file says
            if Path(run.run).is_absolute() or ".." in Path(run.run).parts:
                raise ValueError(f"run {run.run!r} must lie below the comparison")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).splitlines()[:3])  # pydantic goes on with all other places
        raise DataError(f"{path} is damaged: {reason}; run `recsys-moe compare` again") from None
    for path in (folder / run.run / EPOCH_METRICS for run in results.runs):
        if not path.is_file():
            raise DataError(
                f"{path} is missing, but {folder / RESULTS} lists its run; restore the run "
                "folder, or delete it and run `recsys-moe compare` again to train it"
            )
    return results


def runs_of(results: Results, row: Row) -> list[RunRecord]:
    return [run for run in results.runs if run.contender == row.contender]


def curves(folder: Path, results: Results, group: Group) -> Curves:
    """Means over the runs that reached each epoch."""
    routers = []
    for row in group.rows:
        epochs = [read_epochs(folder / run.run / EPOCH_METRICS) for run in runs_of(results, row)]
        if epochs:
            over_seeds = pd.concat(map(pd.Series, map(validation_losses, epochs))).groupby(level=0)
            losses = over_seeds.agg(mean=statistics.fmean, low="min", high="max", runs="size")
            columns: dict[Any, list[Any]] = losses.to_dict("list")
            routers.append(RouterCurve(row.router, losses.index.tolist(), **columns))
    return Curves(routers)


def costs(group: Group) -> Costs:
    """Of the routers that have both a loss and a cost."""
    points = pd.DataFrame(
        [
            (row.router, row.cells["experts_inference"].mean, loss.mean, loss.standard_error)
            for row in group.rows
            if "experts_inference" in row.cells and (loss := row.cells.get("loss"))
        ],
        columns=["router", "cost", "loss", "error"],
    ).astype({"error": float})
    losses = points.sort_values(["cost", "loss"])["loss"]
    lowest_so_far = losses.cummin().shift(fill_value=math.inf)
    best = losses.index[losses < lowest_so_far].tolist()
    return Costs(**points.to_dict("list"), best=best)


def seeds(results: Results, group: Group, column: Column) -> Seeds:
    """Values where they are defined."""
    values = {
        row.router: values_by_seed(runs_of(results, row), column) for row in ranked(group, column)
    }
    return Seeds(column, values)


def ranked(group: Group, column: Column) -> list[Row]:
    """Rows with a value, the best mean first."""
    sign = -1 if column.better == "higher" else 1
    rows = [row for row in group.rows if column.name in row.cells]
    return sorted(rows, key=lambda row: sign * row.cells[column.name].mean)


def seeds_figure(number: int, column: str) -> str:
    """Name of the figure of a column in group `number`: seeds-0-watch-auc."""
    return "-".join(["seeds", str(number), *map(slug, column.split("."))])


def idle_in(run: RunRecord) -> list[int]:
    """The idle experts of a run."""
    return idle_experts(routing["load"] for routing in run.details["routing"].values())


def comparison_findings(results: Results) -> list[Finding]:
    """The best router and its test; missing runs; routers with idle experts."""
    missing, finished = len(results.missing), len(results.runs)
    found = [
        note(_verdict(results, group, test), seeds_figure(number, test.column))
        for number, group in enumerate(results.groups)
        for test in group.tests
        if test.runner_up
    ]
    if missing:
        text = f"{missing} of {missing + finished} runs are not finished and not counted."
        found.append(warning(text))
    if len(results.seeds) == 1:
        found.append(warning("Only one seed: no spread and no test."))
    for group in results.groups:
        if idle := [*_idle(results, group)]:
            text = f"Routers with idle experts (weights {weights_of(group)}): {join(idle)}."
            found.append(warning(text))
    return worst_first(found)


def _idle(results: Results, group: Group) -> Iterator[str]:
    """Routers with the number of their runs; the table of runs has the experts."""
    for row in group.rows:
        idle = [bool(idle_in(run)) for run in runs_of(results, row)]
        if any(idle):
            yield f"{row.router} ({sum(idle)} of {len(idle)} runs)"


def _verdict(results: Results, group: Group, test: TTest) -> str:
    rows = {row.contender: row for row in group.rows}
    title = next(column.title for column in results.columns if column.name == test.column)
    best, other = (
        f"{rows[key].router} ({rows[key].cells[test.column].mean:.4f}"
        for key in (test.best, test.other)
    )
    p = "untested" if test.unpaired is None else f"p = {test.unpaired:.2g}"
    sure = "is significantly better than" if is_bold(test) else "is not shown to be better than"
    return (
        f"{title} (weights {weights_of(group)}): of the k-sparse routers the "
        f"best mean is {best}); it {sure} {other}, {p})."
    )
