"""Epochs of a run, as its metrics.csv and its log have them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from recsys_moe.artifact import epoch_metrics
from recsys_moe.lab.jobs.lab_run import LabRun

LINE = re.compile(
    r"^(?:(?P<resumed>continuing from)"
    r"|epoch (?P<epoch>\d+)/\S+ (?:step (?P<step>\d+)/|done in (?P<seconds>[\d.]+) s))",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Epoch:
    """A finished epoch."""

    epoch: int
    """The first is 1."""
    seconds: float | None
    """Training and validation; None where the log does not have the whole of it."""
    metrics: epoch_metrics.Numbers


def read_epochs(run: LabRun) -> list[Epoch]:
    """In their order. Raises DataError where metrics.csv is damaged."""
    seconds = seconds_of_epochs(run.read_log())
    rows = epoch_metrics.read_epochs(run.folder / epoch_metrics.EPOCH_METRICS)
    return [Epoch(epoch, seconds.get(epoch), row) for epoch, row in sorted(rows.items())]


def seconds_of_epochs(log: str) -> dict[int, float]:
    """By epoch, without those that were continued inside: the log times only their rest."""
    seconds: dict[int, float] = {}
    resumed, cut = False, 0
    for line in LINE.finditer(log):
        epoch = int(line["epoch"] or 0)
        if line["resumed"]:
            resumed = True
        elif line["step"]:
            if resumed and int(line["step"]) > 1:
                cut = epoch
            resumed = False
        elif epoch != cut:
            seconds[epoch] = float(line["seconds"])
    return seconds
