"""runs.csv and epochs.csv of a comparison: its finished runs without their folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from recsys_moe.config.build import unit_of_losses
from recsys_moe.config.settings import parse_config
from recsys_moe.lab.compare.columns import RANKING, Column
from recsys_moe.lab.compare.epochs import Epoch, read_epochs
from recsys_moe.lab.compare.plan import ComparisonPlan
from recsys_moe.lab.compare.results import Results, RunRecord, lab_run

DIGITS = 6
"""After the point."""


def run_files(results: Results, plan: ComparisonPlan, out: Path) -> dict[str, str]:
    """Content by name of the file, in the order of the plan: seed by seed, all routers of each."""
    rows = {row.contender: (row, group.weights) for group in results.groups for row in group.rows}
    names = [column.name for column in results.columns if _is_metric(column)]
    facts = {
        "data": results.data,
        "protocol": results.protocol,
        "split": results.split,
    }
    runs, lines = [], []
    for record in results.runs:
        epochs = read_epochs(lab_run(out, record.contender, record.seed))
        row, weights = rows[record.contender]
        head = {
            "run": f"{record.contender}-seed{record.seed}",
            "label": row.router,
            **{f"weight.{task}": weight for task, weight in weights.items()},
            "seed": record.seed,
        }
        config = parse_config(plan.contenders[record.contender].config)
        kind = {"router": config.router.name if config.router else "-", "visits": row.experts}
        kind["losses"] = unit_of_losses(config)
        runs.append({**head, **kind, **_run(record, epochs, names), **facts})
        lines += [{**head, **_epoch(epoch, names)} for epoch in epochs]
    return {"runs.csv": _csv(runs), "epochs.csv": _csv(lines)}


def _is_metric(column: Column) -> bool:
    return column.better is not None or column.name.startswith(RANKING)


def _run(record: RunRecord, epochs: Sequence[Epoch], names: Sequence[str]) -> dict[str, Any]:
    best = next(epoch for epoch in epochs if epoch.epoch == record.best_epoch)
    costs = ("experts_training", "experts_inference", "seconds_per_epoch")
    return {
        "best_epoch": record.best_epoch,
        "epochs": record.epochs,
        **{name: record.values[name] for name in names},
        **_validation(best, names),
        **{name: record.values[name] for name in costs},
        "seconds_total": total_seconds(epochs),
        "parameters": int(record.values["parameters"] or 0),
    }


def total_seconds(epochs: Sequence[Epoch]) -> float | None:
    """Of all epochs; one whose time is unknown counts as the median. None where all are."""
    seconds = pd.Series([epoch.seconds for epoch in epochs], dtype=float)
    return None if seconds.isna().all() else float(seconds.fillna(seconds.median()).sum())


def _epoch(epoch: Epoch, metrics: Sequence[str]) -> dict[str, Any]:
    return {
        "epoch": epoch.epoch,
        "seconds": epoch.seconds,
        "train.loss": epoch.metrics.get("train/loss"),
        **_validation(epoch, metrics),
    }


def _validation(epoch: Epoch, metrics: Sequence[str]) -> dict[str, float | None]:
    """`watch.auc` is `val/watch/auc` in metrics.csv and `val.watch.auc` here."""
    return {
        f"val.{name}": epoch.metrics.get("/".join(["val", *name.rsplit(".", 1)]))
        for name in metrics
        if not name.startswith(RANKING)  # of a split, not of an epoch
    }


def _csv(lines: Sequence[dict[str, Any]]) -> str:
    """Empty where nothing is finished."""
    if not lines:
        return ""
    rounded = [
        {k: round(v, DIGITS) if isinstance(v, float) else v for k, v in line.items()}
        for line in lines
    ]
    return pd.DataFrame(rounded, dtype=object).to_csv(index=False)
