"""AUC of popularity on the test rows of a prepared folder, its sampled negatives included.

Axes: N rows, I items and one more for the unknown one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from research.time_peers.lists import DAY

HALF_LIVES = (1, 3, 7, 30, 90)


def popularity_auc(folder: Path) -> Iterator[tuple[str, float, int]]:
    """Peer, AUC and rows: counts frozen at the end of the training or of the validation rows and,
    where negatives have a time, running strictly before each row."""
    parts = {name: read(folder, name) for name in ("train", "val", "test")}
    test = parts["test"]
    for end, names in (("train", ["train"]), ("val", ["train", "val"])):
        known = pd.concat([parts[name] for name in names])
        for peer, score_I in frozen(known[known.watch == 1]):
            yield f"{peer}, frozen after {end}", auc(test, score_I[test.item]), len(test)
    if test.timestamp.notna().all():
        log = pd.concat(parts.values())
        for peer, score_N in running(log[log.watch == 1], test):
            yield f"{peer}, running", auc(test, score_N), len(test)


def read(folder: Path, split: str) -> pd.DataFrame:
    """Item, label and time (seconds, NaN where unknown) of the rows of a split."""
    frame = pd.read_parquet(folder / split, columns=["item_index", "watch", "timestamp"])
    return frame[frame.watch.notna()].rename(columns={"item_index": "item"})


def auc(rows: pd.DataFrame, score_N: np.ndarray) -> float:
    return float(roc_auc_score(rows.watch, score_N))


def frozen(positives: pd.DataFrame) -> Iterator[tuple[str, np.ndarray]]:
    """Scores (I,) by the name of a popularity."""
    age_N = (positives.timestamp.max() - positives.timestamp) / DAY
    size = 1 << 16
    yield "popularity", np.bincount(positives.item, minlength=size)
    yield "popularity, last 7 days", np.bincount(positives.item[age_N <= 7], minlength=size)
    for days in HALF_LIVES:
        weight_N = np.exp2(-age_N / days)
        yield f"popularity, half-life {days} d", np.bincount(positives.item, weight_N, size)


def running(log: pd.DataFrame, rows: pd.DataFrame) -> Iterator[tuple[str, np.ndarray]]:
    """Scores (N,) of the rows, each from the events strictly before it."""
    log = log.sort_values("timestamp", kind="stable")
    yield "popularity", scored(log, rows, np.ones(len(log)))
    for days in HALF_LIVES:
        age_N = (log.timestamp.max() - log.timestamp) / DAY
        later_N = (log.timestamp.max() - rows.timestamp) / DAY
        weight_N = np.exp2(-age_N / days)
        score_N = scored(log, rows, weight_N) * np.exp2(later_N / days)
        yield f"popularity, half-life {days} d", score_N


def scored(log: pd.DataFrame, rows: pd.DataFrame, weight_N: np.ndarray) -> np.ndarray:
    """Sum of the weights of the events of each row's item strictly before its time."""
    order = np.lexsort((log.timestamp, log.item))
    item, time = log.item.to_numpy()[order], log.timestamp.to_numpy()[order]
    sums = np.r_[0, np.cumsum(np.asarray(weight_N)[order])]
    span = float(time.max()) + 1
    key = item * span + time
    asked = rows.item.to_numpy()
    place = np.searchsorted(key, asked * span + rows.timestamp.to_numpy())
    return sums[place] - sums[np.searchsorted(key, asked * span)]
