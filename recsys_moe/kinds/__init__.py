"""Task kinds: one file each, and this table of their names. No torch when it is imported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from recsys_moe.kinds.base import AFTER_TRAINING, Kind, TaskLike, nine_digits
from recsys_moe.kinds.binary import Binary
from recsys_moe.kinds.count import Count
from recsys_moe.kinds.duration import Duration
from recsys_moe.kinds.judging import Constant, Labelled, Metrics
from recsys_moe.kinds.levels import MOST_LEVELS, check_levels
from recsys_moe.kinds.multiclass import Multiclass
from recsys_moe.kinds.ordinal import Ordinal
from recsys_moe.kinds.ranking import Ranking
from recsys_moe.kinds.regression import Regression

if TYPE_CHECKING:
    from torch import Tensor

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
    "by_task",
    "check_levels",
    "first_columns",
    "kind_of",
    "metric_title",
    "nine_digits",
    "positive_task",
    "rating_task",
]

TABLE = (Binary, Ranking, Regression, Ordinal, Count, Duration, Multiclass)
KINDS: dict[str, Kind] = {kind.name: kind() for kind in TABLE}
HIGHER_IS_BETTER = frozenset(metric for kind in KINDS.values() for metric in kind.higher)

ABBREVIATIONS = frozenset({"auc", "gauc", "bce", "ece", "mse", "rmse", "mae", "d2"})


def metric_title(metric: str) -> str:
    """A metric as people read it: `ece_calibrated` is ECE calibrated, `log_loss` log loss."""
    return " ".join(w.upper() if w in ABBREVIATIONS else w for w in metric.split("_"))


def kind_of(task: TaskLike) -> Kind:
    """The kind of a task, with its range and levels of labels."""
    kind = KINDS[task.kind]
    bounds = {"low": task.low, "high": task.high}
    return replace(kind, **bounds, levels=task.levels, shares=task.shares, classes=task.classes)


def by_task(logits_BL: Tensor, kinds: Sequence[Kind]) -> list[Tensor]:
    """The logits of each task: (B,), or (B, outputs) with several outputs."""
    sizes = [kind.outputs for kind in kinds]
    if max(sizes) == 1:
        return list(logits_BL.unbind(1))
    parts = zip(sizes, logits_BL.split(sizes, 1), strict=True)
    return [part_BO[:, 0] if size == 1 else part_BO for size, part_BO in parts]


def first_columns(kinds: Sequence[Kind]) -> list[int]:
    """The column of logits at which each task begins."""
    return list(accumulate((kind.outputs for kind in kinds), initial=0))[:-1]


def positive_task(tasks: Iterable[TaskLike]) -> int | None:
    """Number of the first task whose label 1 marks a positive."""
    return _first(KINDS[task.kind].has_positives for task in tasks)


def rating_task(tasks: Iterable[TaskLike]) -> int | None:
    """Number of the first task whose labels are ratings, which histories can hold."""
    return _first(KINDS[task.kind].is_rating for task in tasks)


def _first(holds: Iterable[bool]) -> int | None:
    return next((number for number, one in enumerate(holds) if one), None)
