"""Runs of the study, and the finished ones in research/results/weighting.csv."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recsys_moe.config.files import find_config, merge_all, read_config_file
from recsys_moe.model.weighting import CONFIGS

ROWS = Path(__file__).resolve().parents[1] / "results" / "weighting.csv"
CONFLICT: dict[str, Any] = {
    "model": {
        **{"embedding_dim": 1, "num_experts": 4, "expert_dim": 16, "tower_dims": [16]},
        **{"biases": False, "dropout": 0.0, "router": {"name": "moesart", "k": 2}},
    },
    "optim": {"lr": 2e-2, "schedule": "cosine", "loss_normalization": "relative"},
    "trainer": {"max_epochs": 40, "batch_size": 1024, "patience": 40},
    "tasks": {"like": {"weight": 1.0}, "score": {"weight": 1.0}},
}
APART = {"tasks": {"score": {"training_weight": 100.0}}}
"""As if the score were in a unit ten times as large: what a method should notice by itself."""
SHIPPED = {"ml-100k": "movielens_100k", "ml-1m": "movielens_1m_quick"}
SEEDS = {"conflict": 5, "conflict-apart": 5, "ml-100k": 5, "ml-1m": 3}
METHODS = tuple(CONFIGS)
FIGURES = (
    *("val.loss", "loss", "auc", "mse", "factor.0", "factor.1"),
    *("best_epoch", "epochs", "minutes", "resumed"),
)
"""`val.`: validation, else test; `factor.`: mean of the best epoch, by task; `minutes`: of this
processor, of the last part of a run that was `resumed`."""
JOB = ("log", "method", "seed")


@dataclass(frozen=True, order=True)
class Job:
    """A run to be made."""

    log: str
    method: str
    seed: int

    @property
    def folder(self) -> str:
        return f"{self.log}-{self.method}-seed{self.seed}"

    @property
    def data(self) -> str:
        """The folder of prepared data."""
        return self.log.removesuffix("-apart")


Row = dict[str, float | None]


def jobs() -> list[Job]:
    """Seed by seed, so that what is finished compares; MovieLens-1M last."""
    return [
        Job(log, method, seed)
        for log, seeds in SEEDS.items()
        for seed in range(seeds)
        for method in METHODS
    ]


def config_of(job: Job) -> dict[str, Any]:
    """The sections of the configuration of a run."""
    base = CONFLICT
    if job.log in SHIPPED:
        base = read_config_file(str(find_config(SHIPPED[job.log])))
    apart = APART if job.log == "conflict-apart" else {}
    own = {"tasks": {"weighting": job.method}, "trainer": {"seed": job.seed, "logger": "csv"}}
    return merge_all([base, apart, own])


def read_rows(path: Path = ROWS) -> dict[Job, Row]:
    """By job; empty where there is no such file."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as stream:
        return {
            Job(line["log"], line["method"], int(line["seed"])): {
                name: float(line[name]) if line[name] else None for name in FIGURES
            }
            for line in csv.DictReader(stream)
        }


def append(job: Job, row: Row, commit: str, path: Path = ROWS) -> None:
    """One line more, on the disk when this returns."""
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        if is_new:
            writer.writerow([*JOB, *FIGURES, "commit"])
        figures = [row.get(name) for name in FIGURES]
        shown = ["" if value is None else f"{value:.6g}" for value in figures]
        writer.writerow([job.log, job.method, job.seed, *shown, commit])
        stream.flush()
        os.fsync(stream.fileno())
