"""Kinds that suit the labels better than those that were asked for, by the training labels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from recsys_moe.kinds import KINDS
from recsys_moe.schema import Schema

Labels = NDArray[np.float64]

LEAST_ROWS = 100
"""Labels below which a shape is chance."""
MOST_ROWS = 2_000_000


def proposals(folder: Path, schema: Schema) -> Iterator[str]:
    """A line for every task whose training labels another kind suits better."""
    for task in schema.tasks:
        label_N = _labels(folder, task.column)
        if len(label_N) >= LEAST_ROWS and (found := KINDS[task.kind].advice(label_N)):
            yield f"{task.name}: {found}"


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
