"""What is learned from a source of ratings: who touched what, and how it was rated."""

from __future__ import annotations

from recsys_moe.schema import Task


def rating_tasks(low: float, high: float) -> tuple[Task, Task]:
    """Whether the user touched the item, and the rating given; weights as in the paper.

    `low`, `high`: the ends of the scale, both possible ratings.
    """
    return (
        Task(name="watch", kind="binary", column="watch", weight=0.9),
        Task(name="rating", kind="regression", column="rating", weight=0.1, low=low, high=high),
    )
