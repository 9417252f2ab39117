"""What is learned from a source of ratings: who touched what, and how it was rated."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from recsys_moe.schema import Task


def rating_tasks(low: float, high: float) -> tuple[Task, Task]:
    """Whether the user touched the item, and the rating given; weights as in the paper.

    `low`, `high`: the ends of the scale, both possible ratings.
    """
    return (
        Task(name="watch", kind="binary", column="watch", weight=0.9),
        Task(name="rating", kind="regression", column="rating", weight=0.1, low=low, high=high),
    )


def rating_labels(rating: NDArray[Any]) -> dict[str, NDArray[np.float32]]:
    """The labels of both tasks; NaN is a row without a rating."""
    return {
        "watch": (~np.isnan(rating)).astype(np.float32),
        "rating": rating.astype(np.float32),
    }
