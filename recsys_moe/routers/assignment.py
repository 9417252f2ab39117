"""The linear assignment problem, solved exactly. Axes: N rows and as many columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def linear_assignment(score_NN: npt.NDArray[Any]) -> Ints:
    """The column of each row, each column once, with the largest sum of scores. O(N^3).

    Shortest augmenting paths with dual prices (Kuhn 1955; Jonker and Volgenant 1987): rows
    join one after the other, each along the cheapest path of reassignments. Raises ValueError
    unless the scores are square and finite.
    """
    cost_NN = -np.asarray(score_NN, dtype=np.float64)
    if cost_NN.ndim != 2 or len(set(cost_NN.shape)) != 1 or not np.isfinite(cost_NN).all():
        raise ValueError(f"scores must be square and finite, got shape {cost_NN.shape}")
    size = len(cost_NN)
    row_price, column_price = np.zeros(size), np.zeros(size)
    row_of = np.full(size, -1)
    for row in range(size):
        _augment(cost_NN, row_price, column_price, row_of, row)
    column_of = np.empty(size, dtype=np.int64)
    column_of[row_of] = np.arange(size)
    return column_of


def _augment(
    cost_NN: Floats, row_price: Floats, column_price: Floats, row_of: Ints, new_row: int
) -> None:
    """Give `new_row` a column, moving others along the cheapest path. Changes its arguments."""
    distance = np.full(len(cost_NN), np.inf)
    previous = np.full(len(cost_NN), -1)
    done = np.zeros(len(cost_NN), dtype=bool)
    row, column, reached = new_row, -1, 0.0
    while row >= 0:
        through = reached + cost_NN[row] - row_price[row] - column_price
        shorter = ~done & (through < distance)
        distance[shorter], previous[shorter] = through[shorter], column
        column = int(np.where(done, np.inf, distance).argmin())
        done[column], reached = True, float(distance[column])
        row = int(row_of[column])
    passed = done & (row_of >= 0)
    row_price[row_of[passed]] += reached - distance[passed]
    row_price[new_row] += reached
    column_price[done] -= reached - distance[done]
    while column >= 0:
        before = int(previous[column])
        row_of[column] = row_of[before] if before >= 0 else new_row
        column = before
