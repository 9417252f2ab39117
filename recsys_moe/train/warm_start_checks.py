"""What `fit --init-from` refuses: another model, other tasks, labels in another unit, a second
start."""

from __future__ import annotations

import json
from pathlib import Path

from recsys_moe.artifact.run_folder import started_from
from recsys_moe.config.diff import flat
from recsys_moe.config.settings import Config
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.schema import Schema, Task

MAY_DIFFER = ("model.dropout", "model.dispatch", "model.features", "model.bag_dropout")
"""Settings of the model that do not change what its weights mean."""
HISTORIES = ("item_bag", "user_bag")
"""Settings of which each may differ too where it begins or ends."""
OF_HISTORIES = ("model.bag_dim",)
"""May differ too where no history goes on."""
OF_RATINGS = ("model.bag_levels", "model.bag_ratings")
"""May differ too where no history of ratings goes on."""


def check_model(before: Config, now: Config, path: str | Path) -> None:
    """Raise ConfigError where the weights of the model at `path` would mean something else."""
    old, new = (dict(flat({"model": c.model_dump(mode="json")["model"]})) for c in (before, now))
    kinds = {key: {getattr(c.model, key) for c in (before, now)} for key in HISTORIES}
    ends = [key for key, kind in kinds.items() if "none" in kind]
    may_differ = (*MAY_DIFFER, *(f"model.{key}" for key in ends))
    if len(ends) == len(HISTORIES):
        may_differ = (*may_differ, *OF_HISTORIES)
    if {"ratings"} not in kinds.values():
        may_differ = (*may_differ, *OF_RATINGS)
    for key in [*old, *(new.keys() - old.keys())]:
        if old.get(key) != new.get(key) and key not in may_differ:
            raise must_stay(path, key, old.get(key), new.get(key))


def must_stay(path: str | Path, key: str, old: object, new: object) -> ConfigError:
    before, now = (v if isinstance(v, str) else json.dumps(v) for v in (old, new))
    return ConfigError(
        f"--init-from {path}: {key} is {before} there and must stay so, got {now}; set it so, or "
        f"train from scratch without --init-from (only {', '.join(MAY_DIFFER)} may differ, and "
        f"{' and '.join(f'model.{key}' for key in HISTORIES)} may begin or end)"
    )


def check_alone(init_from: str | Path | None, resume: str | None) -> None:
    """Raise ConfigError where a run is to start from a model and to go on as well."""
    if init_from is not None and resume is not None:
        raise ConfigError(
            f"--init-from {init_from} starts a new run, and --resume {resume} continues one; pass "
            "one of them: an interrupted run continues with --resume alone"
        )


def check_begun(out: Path) -> None:
    """Raise ConfigError where the run at `out`, which has no checkpoint, started from a model."""
    if begun := started_from(out):
        raise ConfigError(
            f"--resume auto: {out} has no checkpoint yet, and was to start from {begun['folder']}; "
            "start again with --init-from and --overwrite"
        )


def check_tasks(old: Schema, new: Schema, path: str | Path) -> None:
    """Raise DataError where the tasks of the data are others."""
    wanted, found = ([(t.name, t.kind, t.low, t.high) for t in s.tasks] for s in (old, new))
    if wanted != found:
        wanted_text, found_text = (", ".join(map(_task_text, s.tasks)) for s in (old, new))
        raise DataError(
            f"--init-from {path}: its tasks are {wanted_text} and those of the data must be the "
            f"same in the same order, got {found_text}; prepare the data with its tasks"
        )


def check_units(old: Schema, new: Schema, path: str | Path) -> None:
    """Raise DataError for labels where none of the old ones was: stars that are points now."""
    for task in old.tasks:
        before, now = (schema.labels.get("train", {}).get(task.name, {}) for schema in (old, new))
        if not {"min", "max"} <= before.keys() or "mean" not in now:
            continue
        if not before["min"] <= now["mean"] <= before["max"]:
            raise DataError(
                f"--init-from {path}: labels of {task.name} were {before['min']:g} to "
                f"{before['max']:g} there, and their mean in the data must lie between, got "
                f"{now['mean']:g}; prepare them in the same unit"
            )


def _task_text(task: Task) -> str:
    bounds = "" if task.low is None and task.high is None else f" in {task.low}..{task.high}"
    return f"{task.name}:{task.kind}{bounds}"
