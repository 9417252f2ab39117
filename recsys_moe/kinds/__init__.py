"""Task kinds: one file each, and this table of their names. No torch when it is imported."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from recsys_moe.kinds.base import (
    AFTER_TRAINING,
    MOST_LEVELS,
    Constant,
    Kind,
    Labelled,
    Metrics,
    TaskLike,
    nine_digits,
)
from recsys_moe.kinds.binary import Binary
from recsys_moe.kinds.count import Count
from recsys_moe.kinds.duration import Duration
from recsys_moe.kinds.ordinal import Ordinal
from recsys_moe.kinds.ranking import Ranking
from recsys_moe.kinds.regression import Regression

__all__ = [
    "AFTER_TRAINING",
    "HIGHER_IS_BETTER",
    "KINDS",
    "MOST_LEVELS",
    "Binary",
    "Constant",
    "Kind",
    "Labelled",
    "Metrics",
    "Regression",
    "kind_of",
    "nine_digits",
    "positive_task",
    "rating_task",
]

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (Binary(), Regression(), Count(), Duration(), Ranking(), Ordinal())
}
HIGHER_IS_BETTER = frozenset(metric for kind in KINDS.values() for metric in kind.higher)


def kind_of(task: TaskLike) -> Kind:
    """The kind of a task, with its range and levels of labels."""
    kind = KINDS[task.kind]
    return replace(kind, low=task.low, high=task.high, levels=task.levels, shares=task.shares)


def positive_task(tasks: Iterable[TaskLike]) -> int | None:
    """Number of the first task whose label 1 marks a positive."""
    return _first(KINDS[task.kind].has_positives for task in tasks)


def rating_task(tasks: Iterable[TaskLike]) -> int | None:
    """Number of the first task whose labels are ratings, which histories can hold."""
    return _first(KINDS[task.kind].is_rating for task in tasks)


def _first(holds: Iterable[bool]) -> int | None:
    return next((number for number, one in enumerate(holds) if one), None)
