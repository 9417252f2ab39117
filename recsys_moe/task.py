"""What schema.json says of a task, and which names tasks may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from recsys_moe.errors import DataError
from recsys_moe.kinds import KINDS

RESERVED = (
    *("user", "item", "rank", "title", "unseen_user", "unseen_item"),
    *("user_index", "item_index", "timestamp"),
)
"""Columns of predictions and split files besides those of the tasks."""

if TYPE_CHECKING:
    TaskKind = str
else:
    TaskKind = Literal[tuple(KINDS)]


@dataclass(frozen=True, kw_only=True)
class Task:
    """One label to learn. Rows with a null label are not used for this task."""

    name: str
    kind: TaskKind
    column: str
    """Column of the split files holding the label: float32, null where it is missing."""
    weight: float = 1.0
    """Weight of this task in the training loss unless the configuration says otherwise."""
    low: float | None = None
    high: float | None = None
    """Inclusive range of valid labels; None: unbounded."""
    levels: tuple[float, ...] = ()
    """All labels there are, ascending, of kinds with levels; empty for others."""
    shares: tuple[float, ...] = ()
    """Of the levels among the training labels."""
    classes: tuple[str, ...] = ()
    """Names of the levels, of kinds with classes."""


def check_names(tasks: Sequence[Task], more: Sequence[str], where: str) -> None:
    """Raise DataError when a column of predictions or split files would occur twice.

    Predictions have a column per task and, where its kind calibrates, `<task>_calibrated`.
    `more`: columns of split files that not all folders have; `where`: prefix of the message.
    """
    reserved = (*RESERVED, *more)
    calibrated = {f"{task.name}_calibrated" for task in tasks if KINDS[task.kind].calibrates}
    names = [task.name for task in tasks]
    taken = {*reserved, *calibrated, *names}
    for task in tasks:
        for name in (f"{task.name}_{one}" for one in task.classes):
            if name in taken:
                raise DataError(
                    f"{where}task {task.name!r} has a class whose column of probabilities would be "
                    f"{name!r}, which there is already; rename the task"
                )
            taken.add(name)
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{where}task names must differ, got {name!r} twice")
        if name in reserved:
            raise DataError(
                f"{where}task name must not be {', '.join(reserved)}, got {name!r}; "
                "choose another name"
            )
        if name in calibrated:
            raise DataError(
                f"{where}task name must not be {name!r}, the column of calibrated probabilities of "
                f"{name.removesuffix('_calibrated')!r}; choose another name"
            )
