"""Rows of a prepared folder as plain arrays, for processes that know nothing of recsys-moe.

Numpy alone: this is imported in the environment of the peers too. Axes: N rows, U users, I items.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Part(NamedTuple):
    """Rows of one split: int64 indices (N,), float32 labels (N,) with NaN where missing."""

    user: np.ndarray
    item: np.ndarray
    watch: np.ndarray
    rating: np.ndarray

    def watched(self) -> tuple[np.ndarray, np.ndarray]:
        """Users and items of the rows with label 1."""
        return self.user[self.watch == 1], self.item[self.watch == 1]

    def rated(self) -> Part:
        """The rows with a rating."""
        known = ~np.isnan(self.rating)
        return Part(*(column[known] for column in self))


class TrainingRows(NamedTuple):
    """What a peer is given: the training rows, the validation rows to stop by, and sizes."""

    train: Part
    val: Part
    users: int
    items: int


class Scores(NamedTuple):
    """What a peer says of every pair: float32 (U, I), None where it does not do the task.

    `watch` ranks; it is the logit of a probability only where the peer's entry says so.
    """

    watch: np.ndarray | None = None
    rating: np.ndarray | None = None


Fitted = Callable[[], Scores]
"""A trained peer, which scores all pairs when called: that is no part of its minutes."""


def write(path: Path, rows: TrainingRows) -> None:
    columns = {
        f"{name}_{column}": values
        for name, part in (("train", rows.train), ("val", rows.val))
        for column, values in part._asdict().items()
    }
    np.savez(path, sizes=np.array([rows.users, rows.items]), **columns)


def read(path: Path) -> TrainingRows:
    with np.load(path) as file:
        parts = [Part(*(file[f"{name}_{c}"] for c in Part._fields)) for name in ("train", "val")]
        return TrainingRows(*parts, *(int(size) for size in file["sizes"]))
