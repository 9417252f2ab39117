"""The plan of a comparison; plan.json ensures that a restart does not mix results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from recsys_moe.artifact.monitor import find_monitor
from recsys_moe.artifact.run_folder import data_hashes
from recsys_moe.config.auto import with_choices
from recsys_moe.config.diff import flat
from recsys_moe.config.files import merge_all, nested, router_section
from recsys_moe.config.settings import (
    Config,
    parse_config,
    select_router,
    task_weights,
    training_weights,
)
from recsys_moe.errors import ConfigError
from recsys_moe.files import write_json
from recsys_moe.inference.evaluation.ranking import LENGTH
from recsys_moe.inference.evaluation.ranking_wanted import wanted_rows
from recsys_moe.lab.compare.request import ComparisonRequest, check_once
from recsys_moe.lab.jobs.plan_file import (
    AUTOMATIC,
    FORMAT_VERSION,
    PLAN_FILE,
    Raw,
    check_files,
    check_settings,
    completed,
    follows_data,
    saved_plan,
)
from recsys_moe.schema import SPLITS, Schema
from recsys_moe.section import STRICT, validated


@dataclass(frozen=True)
class Contender:
    """A router with its settings and the task weights it is trained for."""

    router: str
    """Its label, usually the name of the router."""
    weights: tuple[float, ...]
    config: Raw
    """Resolved configuration; each run has its own seed."""


@dataclass(frozen=True)
class ComparisonPlan:
    """Contenders x seeds on one data set."""

    __pydantic_config__ = STRICT

    split: str
    files: dict[str, str]
    """SHA-256 of the data's files."""
    seeds: tuple[int, ...]
    contenders: dict[str, Contender]
    """By `name(router, weights)`."""

    def runs(self) -> Iterator[tuple[str, int]]:
        """Contender and seed, ordered by seed: an interrupted comparison has all routers."""
        return ((key, seed) for seed in self.seeds for key in self.contenders)

    def groups(self) -> dict[tuple[float, ...], list[str]]:
        """Contenders by task weights; only these can be compared."""
        groups: dict[tuple[float, ...], list[str]] = {}
        for key, contender in self.contenders.items():
            groups.setdefault(contender.weights, []).append(key)
        return groups


def name(router: str, weights: Sequence[float]) -> str:
    """`moesart-0.9_0.1`, a valid folder name."""
    plain = re.sub(r"[^A-Za-z0-9._+]+", ".", router)
    return f"{plain}-{'_'.join(f'{weight:g}' for weight in weights)}"


def make_plan(request: ComparisonRequest, data: Path) -> ComparisonPlan:
    """Resolve and validate everything before the first run. Raises ConfigError and DataError."""
    schema = Schema.load(data)
    if request.split not in SPLITS:
        raise ConfigError(f"--split must be one of {', '.join(SPLITS)}, got {request.split!r}")
    if request.ranking:
        wanted_rows(schema, LENGTH)
    request.check()
    choices = [parse_weights(text, schema) for text in request.weights]
    if not choices:
        given = request.file or {}, request.typed or {}
        tasks = [{"tasks": raw.get("tasks") or {}} for raw in given]
        choices = [tuple(task_weights(parse_config(merge_all(tasks)), schema.tasks))]
    check_once("--weights", choices)
    asked = [_contender(request, r, w, schema) for w in choices for r in request.routers]
    contenders = {name(contender.router, contender.weights): contender for contender in asked}
    if len(contenders) < len(asked):
        raise ConfigError(
            f"--routers {','.join(request.routers)}: two would have the same folder; rename a label"
        )
    return ComparisonPlan(request.split, data_hashes(data), tuple(request.seeds), contenders)


def parse_weights(text: str, schema: Schema) -> tuple[float, ...]:
    """`0.9,0.1` -> (0.9, 0.1), one per task of the data."""
    names = [task.name for task in schema.tasks]
    try:
        weights = tuple(float(part) for part in text.split(","))
    except ValueError:
        weights = ()
    are_weights = all(0 <= weight < float("inf") for weight in weights) and any(weights)
    if len(weights) != len(names) or not are_weights:
        raise ConfigError(
            f"--weights must be numbers >= 0, not all 0, for {', '.join(names)} in this order, "
            f"got {text!r}; e.g. {','.join(['0.5'] * len(names))}"
        )
    return weights


def tasks_section(weights: Sequence[float], schema: Schema) -> Raw:
    """Section of the configuration with a weight for every task."""
    pairs = zip(schema.tasks, weights, strict=True)
    return {"tasks": {task.name: {"weight": weight} for task, weight in pairs}}


def _contender(
    request: ComparisonRequest, label: str, weights: tuple[float, ...], schema: Schema
) -> Contender:
    try:
        config = _config(request, label, weights, schema)
        find_monitor(config.trainer.monitor, schema)
        training_weights(config, schema.tasks)
        config.model.check_tasks(len(schema.tasks))
    except ConfigError as error:
        raise ConfigError(f"router {label}: {error}") from None
    return Contender(label, weights, config.model_dump(mode="json"))


def _config(
    request: ComparisonRequest, label: str, weights: Sequence[float], schema: Schema
) -> Config:
    """Common file, or what suits the data < the label's < command line < task weights."""
    router, tasks = request.router_of(label), tasks_section(weights, schema)
    raw, _ = select_router(request.file or {}, router)
    own = nested("model.router", {**router_section(request.own(label)), "name": router})
    typed = dict(request.typed or {})
    if shared := router_section(typed):
        fitting = {key: value for key, value in shared.items() if key in request.keys_of(label)}
        typed["model"] = {**typed["model"], "router": fitting}
    seed = nested("trainer.seed", request.seeds[0])
    asked = merge_all([raw, request.own(label), own, typed, tasks, seed])
    everything = request.file is None and request.follows_data
    return parse_config(with_choices(asked, schema, everything=everything)[0])


def settle(plan: ComparisonPlan, out: Path) -> ComparisonPlan:
    """Merge `plan` into OUT/plan.json.

    Raises ConfigError or DataError naming the first difference that forbids one table.
    """
    head = {"format_version": FORMAT_VERSION, AUTOMATIC: follows_data(out)}
    if (out / PLAN_FILE).is_file():
        plan = _joined(_load(out), plan, out)
    write_json(out / PLAN_FILE, {**head, **asdict(plan)})
    return plan


def _load(out: Path) -> ComparisonPlan:
    with saved_plan(out, "compare") as raw:
        del raw["format_version"]
        raw.pop(AUTOMATIC, None)
        plan = validated(ComparisonPlan, raw)
    whole = {
        key: replace(contender, config=completed(contender.config, out))
        for key, contender in plan.contenders.items()
    }
    return replace(plan, contenders=whole)


def _joined(before: ComparisonPlan, now: ComparisonPlan, out: Path) -> ComparisonPlan:
    check_files(before.files, now.files, out)
    check_settings({"--split": before.split}, {"--split": now.split}, str(out))
    for key in sorted(before.contenders.keys() & now.contenders.keys()):
        was, is_ = (_without_seed(plan.contenders[key]) for plan in (before, now))
        check_settings(was, is_, f"{key} in {out}")
    seeds = tuple(dict.fromkeys([*before.seeds, *now.seeds]))
    return replace(before, seeds=seeds, contenders={**before.contenders, **now.contenders})


def _without_seed(contender: Contender) -> Raw:
    return {key: value for key, value in flat(contender.config) if key != "trainer.seed"}
