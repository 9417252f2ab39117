"""Finished runs of the comparison: research/results/routers.csv, and those of earlier studies."""

from __future__ import annotations

import csv
import fcntl
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"
ROWS = RESULTS / "routers.csv"
WEIGHTS = "0.9,0.1"
FIRST = {"moesart": "moesart_4", "softmax": "softmax_4_gate_1", "topk": "topk_4"}
LARGER = FIRST | {
    **{name: f"{name}_4" for name in ("smoe", "xmoe")},
    **{name: f"{name}_4_gate_1" for name in ("pps", "dselect_k", "vmoe", "comet")},
}
EARLIER: tuple[tuple[str, str, str, dict[str, str]], ...] = (
    ("ml-100k-trials.runs.csv", "ml-100k", "18c0cd5", {}),
    ("ml-100k-routers.runs.csv", "ml-100k", "01c31ae", {}),
    ("ml-100k-convergence.runs.csv", "ml-100k", "18c0cd5", FIRST),
    ("ml-100k-all-routers.runs.csv", "ml-100k", "01c31ae", {}),
    ("ml-1m-convergence.runs.csv", "ml-1m", "18c0cd5", FIRST),
    ("ml-1m-routers.runs.csv", "ml-1m", "263e730", LARGER),
)
"""Runs of the same protocol, settings and seeds: file, log, commit, and which setting of
routers.yaml a label was where that is not its own name. Of a run that stands in several files the
last counts."""


@dataclass(frozen=True, order=True)
class Job:
    """A run to be made."""

    log: str
    """`ml-100k`: the folder of prepared data."""
    router: str
    """Of routers.yaml, usually the name of the router."""
    setting: str
    seed: int
    weights: str = WEIGHTS

    @property
    def folder(self) -> str:
        return f"{self.log}-{self.setting}-{self.weights.replace(',', '_')}-seed{self.seed}"


@dataclass(frozen=True)
class Row:
    """What a finished run reached; None where it is not known (or the run failed).

    Of an earlier study there is `wall` in place of `minutes`: of the clock, beside other runs."""

    job: Job
    figures: dict[str, float | None]
    commit: str

    def __getitem__(self, name: str) -> float | None:
        return self.figures.get(name)


JOB = ("log", "router", "setting", "seed", "weights")
FIGURES = (
    "val.loss",
    "val.watch.auc",
    "val.rating.mse",
    "loss",
    "watch.auc",
    "rating.mse",
    "best_epoch",
    "epochs",
    "minutes",
    "resumed",
    "experts_training",
    "experts_inference",
)
"""`val.`: validation, without it test; `minutes`: of processors, training and validation;
`resumed`: 1 where a run was continued, so that its minutes are those of its last part."""


def read_rows(path: Path = ROWS) -> dict[Job, Row]:
    """By job; of a job with several the last. Empty where there is no such file."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as stream:
        return {row.job: row for row in map(_row, csv.DictReader(stream))}


def _row(line: dict[str, str]) -> Row:
    values = {name: float(line[name]) if line[name] else None for name in FIGURES}
    own = (line["log"], line["router"], line["setting"], int(line["seed"]), line["weights"])
    return Row(Job(*own), values, line["commit"])


def append(row: Row, path: Path) -> None:
    """One line more, on the disk when this returns."""
    with path.open("a", newline="", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        writer = csv.writer(stream, lineterminator="\n")
        if not os.path.getsize(path):
            writer.writerow([*JOB, *FIGURES, "commit"])
        own = [getattr(row.job, name) for name in JOB]
        figures = [row[name] for name in FIGURES]
        writer.writerow([*own, *("" if n is None else f"{n:.6g}" for n in figures), row.commit])
        stream.flush()
        os.fsync(stream.fileno())


def earlier(settings: dict[str, dict[str, object]]) -> dict[Job, Row]:
    """Runs of EARLIER whose setting stands in `settings`; trials have no figures of test."""
    router_of = {label: router for router, labels in settings.items() for label in labels}
    found: dict[Job, Row] = {}
    for name, log, commit, labels in EARLIER:
        with (RESULTS / name).open(newline="", encoding="utf-8") as stream:
            for line in csv.DictReader(stream):
                label = labels.get(line["label"], line["label"])
                if label in router_of:
                    row = _earlier_row(line, Job(log, router_of[label], label, 0), commit)
                    found[row.job] = _merged(found.get(row.job), row)
    return found


def _earlier_row(line: dict[str, str], job: Job, commit: str) -> Row:
    weights = f"{float(line['weight.watch']):g},{float(line['weight.rating']):g}"
    own = Job(job.log, job.router, job.setting, int(line["seed"]), weights)
    names = [n for n in FIGURES if n in line and (line["split"] == "test" or _not_of_test(n))]
    found: dict[str, float | None] = {name: float(line[name]) for name in names if line[name]}
    return Row(own, found | {"wall": float(line["seconds_total"]) / 60}, commit)


def _not_of_test(name: str) -> bool:
    return name not in ("loss", "watch.auc", "rating.mse", "experts_inference")


def _merged(before: Row | None, row: Row) -> Row:
    """A trial that was later tested as well keeps what it has of validation: its own run's."""
    keeps_test = before is not None and before["loss"] is not None and row["loss"] is None
    return before if before is not None and keeps_test else row


def all_rows(settings: dict[str, dict[str, object]], path: Path = ROWS) -> dict[Job, Row]:
    """Rows of `path` before those of earlier studies."""
    return {**earlier(settings), **read_rows(path)}


def best(rows: Iterable[Row], figure: str = "val.loss") -> Row | None:
    """The row with the lowest, of those that have it."""
    known = [row for row in rows if row[figure] is not None]
    return min(known, key=lambda row: row[figure] or 0.0, default=None)
