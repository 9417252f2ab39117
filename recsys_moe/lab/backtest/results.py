"""The periods of a backtest as tables and a plot."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import pandas as pd

from recsys_moe.files import read_record, write_json, write_text
from recsys_moe.kinds import metric_title
from recsys_moe.lab.backtest.plan import UPDATES, BacktestPlan, BacktestRequest, text_of
from recsys_moe.lab.compare.epochs import read_epochs
from recsys_moe.lab.compare.run_files import total_seconds
from recsys_moe.lab.jobs.lab_run import LabRun
from recsys_moe.lab.jobs.plan_file import Raw
from recsys_moe.lab.report.plots_periods import SHOWN, over_time, save_lines

RESULTS = "results.json"
DIGITS = 6
"""After the point, in CSV."""


def run_of(out: Path, update: str, period: int) -> LabRun:
    """The run that predicts a period, 0 the first; all begin with the same one."""
    is_first = update in ("none", "initial") or period == 0
    return LabRun(out, "runs", "initial" if is_first else f"{update}-{period + 1:03d}")


def write(plan: BacktestPlan, request: BacktestRequest, out: Path) -> Raw:
    """results.json, periods.csv and periods.svg of what is finished, of earlier calls too."""
    wanted = {*request.updates, *_before(out)}
    updates = [update for update in UPDATES if update in wanted]
    found = {u: [_record(plan, out, u, p) for p in range(len(plan.starts))] for u in updates}
    rows = [one for records in found.values() for one in records if one]
    results = {"updates": updates, "periods": rows, "summary": [*_means(rows)]}
    write_json(out / RESULTS, results)
    write_text(
        out / "periods.csv", pd.DataFrame(map(_flat, rows), dtype=object).to_csv(index=False)
    )
    if rows:
        known = {u: [*takewhile(bool, records)] for u, records in found.items()}
        save_lines(out / "periods.svg", {u: over_time(one) for u, one in known.items() if one})
    return results


def _before(out: Path) -> list[str]:
    """The updates that earlier calls asked for. Raises DataError."""
    if not (out / RESULTS).is_file():
        return []
    return list(read_record(out / RESULTS, "delete it")["updates"])


def _record(plan: BacktestPlan, out: Path, update: str, period: int) -> Raw:
    """A period under an update; empty where it is not finished.

    `seconds`: of training the model that was not there for the period before.
    """
    run = run_of(out, update, period)
    result = run.evaluation("test")
    if result is None or "periods" not in result:
        return {}
    is_new = update != "none" or period == 0
    metrics = result["periods"][period if run.name == "initial" else 0]
    head = {"update": update, "period": period + 1, "run": run.places[0]}
    seconds = total_seconds(read_epochs(run)) if is_new else 0.0
    return {**head, "seconds": seconds, **metrics}


def _means(rows: Sequence[Raw]) -> Iterator[Raw]:
    """Per update: seconds of all trainings after the first one, and the means of the metrics over
    the periods after the first, weighted by rows of the task."""
    for update in dict.fromkeys(row["update"] for row in rows):
        later = [row for row in rows if row["update"] == update and row["period"] > 1]
        seconds = [row["seconds"] for row in later]
        yield {
            "update": update,
            "periods": len(later),
            "seconds": None if None in seconds else sum(seconds),
            "tasks": {task: _mean(later, task) for task in (later[0]["tasks"] if later else ())},
        }


def _mean(rows: Sequence[Raw], task: str) -> dict[str, float | None]:
    found = [row["tasks"][task] for row in rows]
    return {name: _weighted(found, name) for name in found[0] if name != "rows"}


def _weighted(found: Sequence[Raw], name: str) -> float | None:
    known = [one for one in found if one[name] is not None]
    weight = sum(one["rows"] for one in known)
    return math.fsum(one[name] * one["rows"] for one in known) / weight if weight else None


def _flat(row: Raw) -> dict[str, Any]:
    """A line of the CSV."""
    cells = {f"{task}.{n}": v for task, found in row["tasks"].items() for n, v in found.items()}
    line = {**{key: value for key, value in row.items() if key != "tasks"}, **cells}
    return {k: round(v, DIGITS) if isinstance(v, float) else v for k, v in line.items()}


def summary(results: Raw, out: Path) -> str:
    """A table: a line per period and update, then one per update."""
    rows = results["periods"]
    lines = [
        {"period": row["period"], "from (UTC)": text_of(row["first"]), **_cells(row)}
        for row in rows
    ]
    means = [{"period": "mean", "from (UTC)": "", **_cells(one)} for one in results["summary"]]
    order = sorted(lines, key=lambda line: int(line["period"]))
    table = pd.DataFrame([*order, *means]).fillna("-").to_string(index=False)
    return "\n".join(
        [
            table,
            "",
            "mean: of the periods after the first, weighted by rows, and all minutes of training",
            f"{out / 'periods.csv'}, periods.svg, {RESULTS}",
        ]
    )


def _cells(row: Raw) -> dict[str, Any]:
    seconds = row["seconds"]
    minutes = "-" if seconds is None else f"{seconds / 60:.2f}"
    cells = {"update": row["update"], "minutes": minutes}
    for task, found in row["tasks"].items():
        for name in SHOWN:
            if name in found:
                value = found[name]
                cells[f"{task} {_title(name)}"] = "-" if value is None else f"{value:.4f}"
    return cells


def _title(name: str) -> str:
    short = {"normalised_entropy": "NE", "predicted_over_observed": "pred/obs"}
    return short.get(name, metric_title(name))
