"""metrics.csv of a run: a row per epoch."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from recsys_moe.errors import DataError

EPOCH_METRICS = "metrics.csv"
LOSSES = ("train/loss", "val/loss")
Numbers = dict[str, float | None]
"""By column, such as `val/watch/auc`; None where the rows leave a metric undefined."""


def read_epochs(path: Path) -> dict[int, Numbers]:
    """The numbers of each epoch, in their order; the first is 1.

    The last row of an epoch that stands twice counts. Raises DataError where the file is damaged.
    """
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            rows = [_numbers(row) for row in csv.DictReader(stream, strict=True)]
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged: {error}; train the run again") from None
    return dict(rows)


def validation_losses(epochs: Mapping[int, Numbers]) -> dict[int, float]:
    """By epoch; every row has one, which may be `nan`."""
    losses = {epoch: row["val/loss"] for epoch, row in epochs.items()}
    return {epoch: loss for epoch, loss in losses.items() if loss is not None}


def _numbers(row: dict[str, str]) -> tuple[int, Numbers]:
    """`nan` is the loss of a run that diverged; an empty cell is a metric that is undefined."""
    if not all(row[name] for name in LOSSES):
        raise ValueError("every row must have train/loss and val/loss")
    epoch = int(row["epoch"])
    return epoch, {name: float(cell) if cell != "" else None for name, cell in row.items()}
