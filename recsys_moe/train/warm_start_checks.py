"""What a warm start refuses: another model, other tasks, labels in another unit, --resume."""

from __future__ import annotations

import json
from pathlib import Path

from recsys_moe.artifact.run_folder import started_from
from recsys_moe.config.diff import flat
from recsys_moe.config.settings import Config
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.schema import Schema, Task

MAY_DIFFER = (
    *("model.dropout", "model.dispatch", "model.features", "model.context"),
    "model.bag_dropout",
    "model.bag_sample",
)
"""Settings of the model that do not change what its weights mean."""
BAGS = ("item_bag", "user_bag")
"""Each may also be switched on or off."""
OF_RATINGS = ("model.bag_levels", "model.bag_ratings")
"""May differ too where no bag has ratings before and after."""


def check_model(before: Config, now: Config, path: str | Path) -> None:
    """Raise ConfigError where the weights of the model at `path` would mean something else."""
    old, new = (dict(flat({"model": c.model_dump(mode="json")["model"]})) for c in (before, now))
    kinds = {key: {getattr(c.model, key) for c in (before, now)} for key in BAGS}
    switched = [f"model.{key}" for key, kind in kinds.items() if "none" in kind]
    may_differ = (*MAY_DIFFER, *switched)
    if len(switched) == len(BAGS):
        may_differ = (*may_differ, "model.bag_dim")
    if {"ratings"} not in kinds.values():
        may_differ = (*may_differ, *OF_RATINGS)
    for key in [*old, *(new.keys() - old.keys())]:
        if old.get(key) != new.get(key) and key not in may_differ:
            raise must_stay(path, key, old.get(key), new.get(key))


def must_stay(path: str | Path, key: str, old: object, new: object) -> ConfigError:
    before, now = (v if isinstance(v, str) else json.dumps(v) for v in (old, new))
    return ConfigError(
        f"--init-from {path}: {key} must be {before}, as in the model, got {now}; set it so, or "
        f"train from scratch without --init-from (only {', '.join(MAY_DIFFER)} may differ, and "
        f"{' and '.join(f'model.{key}' for key in BAGS)} may be switched on or off)"
    )


def check_alone(init_from: str | Path | None, resume: str | None) -> None:
    """Raise ConfigError where both --init-from and --resume are given."""
    if init_from is not None and resume is not None:
        raise ConfigError(
            f"--init-from {init_from} starts a new run, and --resume {resume} continues one; pass "
            "one of them: an interrupted run continues with --resume alone"
        )


def check_begun(out: Path) -> None:
    """Raise ConfigError where the run at `out` has no checkpoint and was a warm start."""
    if begun := started_from(out):
        raise ConfigError(
            f"--resume auto: {out}, a warm start from {begun['folder']}, has no checkpoint yet; "
            "start again with --init-from and --overwrite"
        )


def check_tasks(old: Schema, new: Schema, path: str | Path) -> None:
    """Raise DataError where the tasks of the data are others."""
    wanted, found = ([_identity(task) for task in s.tasks] for s in (old, new))
    if wanted != found:
        wanted_text, found_text = (", ".join(map(_task_text, s.tasks)) for s in (old, new))
        raise DataError(
            f"--init-from {path}: tasks of the data must be {wanted_text}, as in the model and "
            f"in its order, got {found_text}; prepare the data with these tasks"
        )


def check_units(old: Schema, new: Schema, path: str | Path) -> None:
    """Raise DataError where the mean of new labels is outside of the old ones: another unit."""
    for task in old.tasks:
        before, now = (schema.labels.get("train", {}).get(task.name, {}) for schema in (old, new))
        if not {"min", "max"} <= before.keys() or "mean" not in now:
            continue
        if not before["min"] <= now["mean"] <= before["max"]:
            raise DataError(
                f"--init-from {path}: the mean of {task.name} in the data must be within "
                f"{before['min']:g} to {before['max']:g}, the labels of the model, got "
                f"{now['mean']:g}; prepare the labels in the same unit"
            )


def _identity(task: Task) -> tuple[object, ...]:
    return task.name, task.kind, task.low, task.high, task.levels, task.classes


def _task_text(task: Task) -> str:
    bounds = "" if task.low is None and task.high is None else f" in {task.low}..{task.high}"
    levels = ", ".join(task.classes or map("{:g}".format, task.levels))
    return f"{task.name}:{task.kind}{bounds}{f' of {levels}' if levels else ''}"
