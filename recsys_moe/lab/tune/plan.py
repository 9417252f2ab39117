"""The plan of a study; plan.json ensures that a restart does not mix trials."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from recsys_moe.artifact.monitor import find_monitor
from recsys_moe.artifact.run_folder import data_hashes
from recsys_moe.config.diff import flat
from recsys_moe.config.files import merge
from recsys_moe.config.settings import Config, parse_config, task_weights, training_weights
from recsys_moe.errors import ConfigError
from recsys_moe.files import write_json
from recsys_moe.lab.compare.plan import parse_weights, tasks_section
from recsys_moe.lab.jobs.plan_file import (
    AUTOMATIC,
    FORMAT_VERSION,
    PLAN_FILE,
    Raw,
    check_files,
    check_settings,
    completed,
    saved_plan,
)
from recsys_moe.lab.tune.dimensions import Space
from recsys_moe.lab.tune.space import make_space
from recsys_moe.schema import Schema

SAMPLERS = ("random", "tpe")
PRUNERS = ("none", "asha")


@dataclass(frozen=True, kw_only=True)
class StudyRequest:
    """The arguments of `tune`."""

    config: Config
    """Common to all trials."""
    trials: int
    """In the whole study, >= 1."""
    fixed: Collection[str] = ()
    """Keys given on the command line, which are not searched."""
    space: Raw | None = None
    """Unvalidated, from a file; over the space of the router."""
    weights: str | None = None
    """`0.9,0.1`: task weights in the order of schema.json; None: those of the configuration."""
    sampler: str = "tpe"
    pruner: str | None = None
    """None: `asha` with `tpe`, `none` with `random`, which is the paper's search."""
    storage: str | None = None
    """URL of a database; None: study.db in the folder."""
    evaluate_test: bool = False
    """Also evaluate finished trials on the test split; not used to choose."""
    try_given: bool = True
    """Whether the first trial is the given configuration. The paper's search has none."""


@dataclass(frozen=True)
class StudyPlan:
    """One search on one data set: what must not change between restarts."""

    study: str
    """Its name in the storage."""
    files: dict[str, str]
    """SHA-256 of the data's files."""
    config: Raw
    """Resolved configuration; trials differ from it in the keys of the space."""
    space: Space
    sampler: str
    pruner: str
    storage: str
    """Without password; `study.db` for the file in the folder."""
    given: Raw | None = None
    """The first trial: the given values of the keys of the space; None: no such trial."""

    @property
    def outside(self) -> list[str]:
        """Keys whose value in the configuration is outside the search space."""
        values = dict(flat(self.config))
        return [key for key, dimension in self.space.items() if values.get(key) not in dimension]

    @property
    def router(self) -> str:
        return str(self.config["model"]["router"]["name"])

    def to_json(self) -> Raw:
        space = {key: dimension.to_json() for key, dimension in self.space.items()}
        return {"format_version": FORMAT_VERSION, AUTOMATIC: True, **vars(self), "space": space}


def make_plan(request: StudyRequest, data: Path, storage: str) -> StudyPlan:
    """Validate everything before the first trial. Raises ConfigError and DataError.

    `storage`: the request's, without secrets.
    """
    schema = Schema.load(data)
    if request.trials < 1:
        raise ConfigError(f"--trials must be at least 1, got {request.trials}")
    pruner = request.pruner or ("asha" if request.sampler == "tpe" else "none")
    for option, value, known in (
        ("--sampler", request.sampler, SAMPLERS),
        ("--pruner", pruner, PRUNERS),
    ):
        if value not in known:
            raise ConfigError(f"{option} must be one of {', '.join(known)}, got {value!r}")
    config = _with_weights(request, schema)
    find_monitor(request.config.trainer.monitor, schema)
    space = make_space(config, request.space or {}, request.fixed)
    router = request.config.router
    if router is None:
        raise ConfigError(
            "tune needs a model with routers, got "
            f"model.name={request.config.model.name}; set model.name=mtmoe"
        )
    name = f"{router.name}-{uuid.uuid4().hex[:12]}"
    plan = StudyPlan(name, data_hashes(data), config, space, request.sampler, pruner, storage)
    if not request.try_given or plan.outside:
        return plan
    values = dict(flat(config))
    return replace(plan, given={key: values[key] for key in space})


def _with_weights(request: StudyRequest, schema: Schema) -> Raw:
    """The configuration with a weight for every task: the same for all trials."""
    weights = tuple(task_weights(request.config, schema.tasks))
    if request.weights is not None:
        weights = parse_weights(request.weights, schema)
    raw = merge(request.config.model_dump(mode="json"), tasks_section(weights, schema))
    for task, weight in zip(schema.tasks, weights, strict=True):
        section = raw["tasks"][task.name]
        searched = f"tasks.{task.name}.training_weight" in (request.space or {})
        if searched and section.get("training_weight") is None:
            section["training_weight"] = weight
    config = parse_config(raw)
    training_weights(config, schema.tasks)
    return config.model_dump(mode="json")


def settle(plan: StudyPlan, out: Path) -> StudyPlan:
    """Match `plan` with OUT/plan.json, or write it there.

    Raises ConfigError or DataError naming the first difference.
    """
    if (out / PLAN_FILE).is_file():
        before = _load(out)
        plan = replace(plan, study=before["study"])
        now = json.loads(json.dumps(plan.to_json()))
        check_files(before["files"], now["files"], out)
        check_settings(_settings(before), _settings(now), str(out))
    else:
        write_json(out / PLAN_FILE, plan.to_json())
    return plan


def _load(out: Path) -> Raw:
    with saved_plan(out, "tune") as raw:
        if "contenders" in raw:
            raise ConfigError(f"--out {out} is a comparison; tune into another folder")
        _ = str.lower(raw["study"]), raw["files"].keys(), raw["config"].keys(), _settings(raw)
    return {**raw, "config": completed(raw["config"], out)}


def _settings(plan: Raw) -> Raw:
    """What must not change, in the user's spelling."""
    options = {f"--{name}": plan[name] for name in ("sampler", "pruner", "storage")}
    space = {f"--space {key}": dimension for key, dimension in plan["space"].items()}
    config = {key: value for key, value in flat(plan["config"]) if key not in plan["space"]}
    return {**options, **space, **config}
