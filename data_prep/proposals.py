"""Kinds that suit the labels better than those that were asked for, by the training labels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from recsys_moe.schema import Schema

Labels = NDArray[np.float64]

LEAST_ROWS = 100
"""Labels below which a shape is chance."""
MOST_ROWS = 2_000_000
HEAVY = 2.0
"""Skewness from which few rows make the squared error; an exponential law has 2."""
RARE = 0.005
"""Share of positives below which the loss of a row says next to nothing."""


def proposals(folder: Path, schema: Schema) -> Iterator[str]:
    """A line for every task whose training labels another kind suits better."""
    for task in schema.tasks:
        if task.kind not in ("regression", "binary"):
            continue
        label_N = _labels(folder, task.column)
        if len(label_N) < LEAST_ROWS:
            continue
        found = _of_numbers(label_N) if task.kind == "regression" else _of_positives(label_N)
        if found:
            yield f"{task.name}: {found}"


def _of_numbers(label_N: Labels) -> str:
    low, high = label_N.min(), label_N.max()
    if low == high:
        return f"all labels are {low:g}: nothing to learn"
    if low == 0 and high == 1 and set(np.unique(label_N)) == {0.0, 1.0}:
        return "labels are 0 and 1: use binary"
    skewness = _skewness(label_N)
    if low < 0 or skewness < HEAVY:
        return ""
    if (label_N == np.rint(label_N)).all() and low == 0:
        return f"skewness {skewness:.0f}, whole numbers from 0: use count"
    if low == 0:
        return f"skewness {skewness:.0f}: use duration, with empty cells for 0"
    return f"skewness {skewness:.0f}: use duration"


def _of_positives(label_N: Labels) -> str:
    share = label_N.mean()
    if 0 < share < RARE:
        return f"{share:.2%} positive: judge it by AUC and lists, as its loss hardly moves"
    return ""


def _skewness(label_N: Labels) -> float:
    """Third standardised moment."""
    off_N = label_N - label_N.mean()
    return float((off_N**3).mean() / (off_N**2).mean() ** 1.5)


def _labels(folder: Path, column: str) -> Labels:
    """The first MOST_ROWS of training, without missing ones."""
    parts, rows = [], 0
    for path in sorted((folder / "train").glob("*.parquet")):
        for batch in pq.ParquetFile(path).iter_batches(columns=[column]):
            parts.append(batch.column(0).to_numpy(zero_copy_only=False).astype(np.float64))
            rows += len(parts[-1])
            if rows >= MOST_ROWS:
                break
        if rows >= MOST_ROWS:
            break
    label_N = np.concatenate([np.empty(0), *parts])
    return label_N[~np.isnan(label_N)]
