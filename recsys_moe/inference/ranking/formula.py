"""What lists may be ranked by: the score of a task, or of two, multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from recsys_moe.errors import ConfigError, suggestion
from recsys_moe.kinds import KINDS, positive_task
from recsys_moe.schema import Task


def score_names(tasks: Sequence[Task]) -> dict[str, tuple[str, ...]]:
    """What may be ranked by -> the tasks whose predictions are multiplied."""
    names = [task.name for task in tasks if KINDS[task.kind].ranks]
    pairs = {f"{a}*{b}": (a, b) for a, b in combinations(names, 2)}
    return {**{name: (name,) for name in names}, **pairs}


def formula_of(score: str | None, tasks: Sequence[Task]) -> tuple[str, ...]:
    """Names of the tasks to multiply; by default the first with positives, or the first one."""
    known = score_names(tasks)
    if not known:
        raise ConfigError("ranking needs a task with a score, got classes only; use predict")
    first = positive_task(tasks)
    if score is None:
        return next(iter(known.values())) if first is None else (tasks[first].name,)
    if score not in known:
        mirrored = "*".join(reversed(score.split("*")))
        hint = suggestion(mirrored if mirrored in known else score, known)
        raise ConfigError(f"--score must be one of {', '.join(known)}, got {score!r}; {hint}")
    return known[score]
