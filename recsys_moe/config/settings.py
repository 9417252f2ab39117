"""Validated configuration: defaults < file < command line. Unknown keys are errors."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from pydantic import Field, ValidationError, model_validator

from recsys_moe.config.command_line import Sections
from recsys_moe.config.files import (
    model_name,
    named_section,
    read_config_file,
    router_name,
    router_section,
)
from recsys_moe.config.model_section import Model, model_config
from recsys_moe.config.renamed import with_new_names
from recsys_moe.config.sections import (
    DataConfig,
    OptimConfig,
    PenaltyConfig,
    TasksConfig,
    TrainerConfig,
)
from recsys_moe.config.text import answer, commented_yaml
from recsys_moe.errors import ConfigError, suggestion
from recsys_moe.model.moe_settings import DEFAULT_ROUTER
from recsys_moe.model.registry import DEFAULT_MODEL, find_model
from recsys_moe.model.settings import ModelConfig
from recsys_moe.model.weighting import CONFIGS, METHODS, WeightingConfig
from recsys_moe.routers import RouterConfig, find_router
from recsys_moe.schema import Task
from recsys_moe.section import Section


class Config(Section):
    data: DataConfig = DataConfig()
    model: Model = Field(default_factory=lambda: model_config({}))
    tasks: TasksConfig = Field(
        default_factory=lambda: TasksConfig.model_validate({}),
        examples=[{"watch": {"weight": 0.9}}],
    )
    """Per task name of schema.json; and `weighting`."""
    penalties: PenaltyConfig = PenaltyConfig()
    optim: OptimConfig = OptimConfig()
    trainer: TrainerConfig = TrainerConfig()

    @model_validator(mode="after")
    def _penalties_act(self) -> Config:
        who, idle = self.model.idle_penalties
        for penalty, reason in idle.items():
            weight = getattr(self.penalties, penalty)
            if weight:
                raise ValueError(
                    f"penalties.{penalty} must be 0 with {who}, which {reason}, "
                    f"got {weight}; set penalties.{penalty}=0 or choose another {who.split()[0]}"
                )
        return self

    @model_validator(mode="after")
    def _gradients_do_not_underflow(self) -> Config:
        name, precision = self.tasks.weighting.name, self.trainer.precision
        if precision == "16-mixed" and name in METHODS and METHODS[name].needs_gradients:
            raise ValueError(
                f"trainer.precision must not be 16-mixed with tasks.weighting={name}, which takes "
                "gradients of unscaled losses, got 16-mixed; use bf16-mixed or 32-true"
            )
        return self

    @property
    def router(self) -> RouterConfig | None:
        """Settings of the routers; None for a model without."""
        return getattr(self.model, "router", None)

    @property
    def eval_rows(self) -> int:
        """Rows per evaluation batch: whole groups, so that batch borders do not cut one."""
        whole = math.lcm(self.data.batchwise_rows, self.model.eval_rows)
        return -(-self.data.eval_batch_size // whole) * whole

    def to_yaml(self, *, comments: bool = False) -> str:
        """YAML for `--config`; `comments`: with the documentation of every key."""
        if comments:
            return commented_yaml(self)
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def task_weights(config: Config, tasks: Sequence[Task]) -> list[float]:
    """Loss weight per task: the configuration's, else the schema's.

    Raises ConfigError for a task that the data do not have, and where all weights are 0.
    """
    names = [task.name for task in tasks]
    for name in config.tasks.named:
        if name not in names:
            raise ConfigError(f"tasks: unknown task {name!r}; {suggestion(name, names)}")
    return _chosen(config, "weight", {task.name: task.weight for task in tasks})


def training_weights(config: Config, tasks: Sequence[Task]) -> list[float]:
    """Weight per task in the training loss: `training_weight`, else that of `task_weights`."""
    judged = zip((task.name for task in tasks), task_weights(config, tasks), strict=True)
    return _chosen(config, "training_weight", dict(judged))


def _chosen(config: Config, key: str, defaults: Mapping[str, float]) -> list[float]:
    """Per task the configuration's value, else the default. Raises ConfigError where all are 0."""
    own = {name: getattr(task, key) for name, task in config.tasks.named.items()}
    weights = [
        default if own.get(name) is None else own[name] for name, default in defaults.items()
    ]
    if not any(weights):
        raise ConfigError(
            f"tasks: a {key} must be above 0, got 0 for {', '.join(defaults)}; set "
            f"tasks.{next(iter(defaults))}.{key}=1"
        )
    return weights


def named_weights(weights: Mapping[str, float]) -> str:
    """`watch 0.9, rating 0.1`"""
    return ", ".join(f"{task} {weight:g}" for task, weight in weights.items())


def weighed_apart(config: Config, tasks: Sequence[Task]) -> tuple[str, str] | None:
    """The training weights and the weights, as text; None where they are equal."""
    names = [task.name for task in tasks]
    both = training_weights(config, tasks), task_weights(config, tasks)
    trained, judged = (named_weights(dict(zip(names, w, strict=True))) for w in both)
    return None if both[0] == both[1] else (trained, judged)


def parse_config(raw: dict[str, Any]) -> Config:
    """Validate a nested mapping. Raises ConfigError."""
    try:
        return Config.model_validate(with_new_names(raw, warn=False))
    except ValidationError as error:
        raise ConfigError(answer(error, Config, _chosen_sections(raw))) from None


def as_config(given: Any) -> Config:
    """A configuration from what `unvalidated` takes. Raises ConfigError."""
    found = unvalidated(given)
    return found if isinstance(found, Config) else parse_config(found)


def unvalidated(given: Any, *, warn: bool = False) -> Config | dict[str, Any]:
    """The Config that is given, or its sections, also from a file or the name of a shipped
    configuration; None: no sections. Raises ConfigError. `warn`: about old names in a file.
    """
    if isinstance(given, Config):
        return given
    if isinstance(given, Sections):
        return given.as_mapping()
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    if isinstance(given, str | os.PathLike):
        return read_config_file(os.fspath(given), warn=warn)
    raise ConfigError(
        "config must be sections of settings, the name of a shipped configuration or a file, "
        f"got {type(given).__name__}; e.g. {{'trainer': {{'batch_size': 512}}}}"
    )


def _chosen_sections(raw: dict[str, Any]) -> dict[str, type[Section]]:
    """The settings of model, router and weighting of an unvalidated mapping, by place."""
    try:
        model = find_model(model_name(raw) or DEFAULT_MODEL).Config
    except ValueError:
        model = ModelConfig
    try:
        router = find_router(router_name(raw) or DEFAULT_ROUTER).Config
    except ValueError:
        router = RouterConfig
    weighting = CONFIGS.get(str(named_section(raw, "tasks", "weighting").get("name", "fixed")))
    return {"model": model, "model.router": router, "tasks.weighting": weighting or WeightingConfig}


def select_router(raw: dict[str, Any], name: str) -> tuple[dict[str, Any], list[str]]:
    """`raw`, a config file, with router `name`.

    Of another router's section only `k` is kept: other keys may have the same name and another
    meaning (xmoe's `temperature` is an initial value). Returns the mapping and the dropped keys.
    """
    try:
        common = {"k"} & set(find_router(name).Config.model_fields)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    section = router_section(raw)
    same = (router_name(raw) or DEFAULT_ROUTER) == name
    dropped = [] if same else sorted(set(section) - {"name"} - common)
    kept = {key: value for key, value in section.items() if key not in dropped}
    model = {**(raw.get("model") or {}), "router": {**kept, "name": name}}
    return {**raw, "model": model}, dropped
