"""The configuration that a command asks for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recsys_moe.config.auto_rules import Choice
    from recsys_moe.config.settings import Config

logger = logging.getLogger("recsys_moe.fit")
FLAGS = {
    "k": "model.router.k",
    "experts": "model.num_experts",
    "max_epochs": "trainer.max_epochs",
    "batch_size": "trainer.batch_size",
    "devices": "trainer.devices",
    "num_nodes": "trainer.num_nodes",
    "seed": "trainer.seed",
    "lr": "optim.lr",
}
"""Key of the configuration by flag, of every command that trains."""


def fit_flags(**flags: Any) -> dict[str, Any]:
    """Values of FLAGS by configuration key; None: not given."""
    return {FLAGS[name]: value for name, value in flags.items()}


def typed_sections(flags: dict[str, Any], sets: list[str]) -> dict[str, Any]:
    """The configuration of the command line: `--set`, and the flags over it."""
    from recsys_moe.config.files import merge_all, nested, parse_set

    given = [nested(key, value) for key, value in flags.items() if value is not None]
    return merge_all([*map(parse_set, sets), *given])


def resolve(
    file: str | None,
    router: str | None,
    flags: dict[str, Any],
    sets: list[str],
    *,
    data: Path | None = None,
) -> Config:
    """See `resolve_with_choices`."""
    return resolve_with_choices(file, router, flags, sets, data=data)[0]


def resolve_with_choices(
    file: str | None,
    router: str | None,
    flags: dict[str, Any],
    sets: list[str],
    *,
    init_from: Path | None = None,
    data: Path | None = None,
    run: Path | None = None,
) -> tuple[Config, list[Choice]]:
    """Base < command line, and what the data chose. Raises ConfigError.

    The base is `file`; without one the model at `init_from`, the run that is continued, or what
    suits `data`; without any the defaults.
    """
    from recsys_moe.config.auto import with_choices
    from recsys_moe.config.files import merge, read_config_file, router_name
    from recsys_moe.config.settings import parse_config, select_router
    from recsys_moe.schema import Schema

    if file is None and init_from is None and run is not None:
        file = str(run / "config.yaml")
    raw = read_config_file(file, warn=True) if file else {}
    typed = typed_sections(flags, sets)
    if name := router or router_name(typed):
        raw, dropped = select_router(raw, name)
        if dropped:
            ignored = ", ".join(dropped)
            logger.info("router %s ignores these settings of %s: %s", name, file, ignored)
    asked = merge(raw, typed)
    chosen: list[Choice] = []
    if init_from is None:
        if data is not None:
            asked, chosen = with_choices(asked, Schema.load(data), everything=file is None)
        resolved = parse_config(asked)
    else:
        from recsys_moe.train.warm_start import start_config

        resolved = start_config(asked, init_from)
    for remark in (*resolved.model.remarks, *_idle_alone(resolved, data)):
        logger.warning(remark)
    return resolved, chosen


def _idle_alone(config: Config, data: Path | None) -> Iterator[str]:
    """Settings about several tasks, where the data have one."""
    from recsys_moe.schema import Schema

    if data is None or len(Schema.load(data).tasks) > 1:
        return
    joint = getattr(getattr(config.model, "router", None), "joint", 0)
    given = {"model.router.joint": joint}
    given["penalties.disagreement"] = config.penalties.disagreement
    for key, value in given.items():
        if value:
            yield f"{key}={value:g} has no effect on one task"


def run_of(resume: str | None, out: Path) -> Path | None:
    """The folder of the run that `--resume` continues, if it has its settings."""
    if resume is None:
        return None
    from recsys_moe.artifact.run_folder import place_of

    is_auto = resume == "auto"  # also of an interrupted --overwrite
    run = place_of(out, False, resume) if is_auto else Path(resume).absolute().parents[1]
    return run if (run / "config.yaml").is_file() else None
