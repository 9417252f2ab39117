"""`recsys-moe fit` and `finish`."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recsys_moe.cli import evaluation_text, inference
from recsys_moe.cli.configuration import fit_flags, resolve_with_choices, run_of
from recsys_moe.cli.options import (
    BatchSize,
    ConfigFile,
    Data,
    Devices,
    Experts,
    Json,
    K,
    Lr,
    MaxEpochs,
    MovedData,
    Overwrite,
    RouterName,
    Sets,
    Weights,
    opt,
)
from recsys_moe.errors import ConfigError
from recsys_moe.files import check_place
from recsys_moe.interrupts import REPORTS, STARTED
from recsys_moe.schema import check_split
from recsys_moe.train.processes import launch
from recsys_moe.train.processes.starter import is_started_outside

if TYPE_CHECKING:
    from recsys_moe.config.auto_rules import Choice
    from recsys_moe.config.settings import Config

logger = logging.getLogger("recsys_moe.fit")

Resume = Annotated[
    str | None, opt("Continue from a checkpoint file; `auto`: the last one in --out.")
]
InitFrom = Annotated[
    Path | None,
    opt(
        "Warm start: take weights and settings from this model.", "--init-from", metavar="RUN|MODEL"
    ),
]
Evaluate = Annotated[
    str | None, opt("Also evaluate on this split afterwards, e.g. test.", metavar="SPLIT")
]
SIZES = (
    *("model.embedding_dim", "model.expert_dim", "model.num_experts", "model.bag_dim"),
    *("trainer.batch_size", "data.eval_batch_size"),
)
"""Where all have their defaults, the first is named: every user and item has an embedding."""
NO_MEMORY = re.compile(
    "can't allocate memory|out of memory|calculation overflowed|overflow when unpacking",
    re.IGNORECASE,
)
"""As torch says it: of CPUs, of GPUs, of sizes beyond any memory."""


def fit(
    data: Data,
    out: Annotated[Path, opt("Run folder to create, e.g. runs/first.")],
    config: ConfigFile = None,
    router: RouterName = None,
    k: K = None,
    experts: Experts = None,
    max_epochs: MaxEpochs = None,
    minutes: Annotated[float | None, opt("Plan as many epochs as end within this time.")] = None,
    batch_size: BatchSize = None,
    lr: Lr = None,
    seed: Annotated[int | None, opt("Random seed.")] = None,
    devices: Devices = None,
    num_nodes: Annotated[int | None, opt("Number of machines.")] = None,
    weights: Weights = None,
    set_: Sets = None,
    resume: Resume = None,
    init_from: InitFrom = None,
    old_from: Annotated[Path | None, typer.Option("--from", hidden=True)] = None,
    overwrite: Overwrite = False,
    evaluate: Evaluate = None,
    dry_run: Annotated[
        bool, opt("Check everything, run one step, write nothing.", "--dry-run")
    ] = False,
    as_json: Json = False,
) -> None:
    """Train a model.

    Training stops early and keeps the best epoch. Metrics are printed next to baselines.
    """
    if old_from is not None:
        logger.warning(
            "--from is now --init-from; the old name will be removed in the next version"
        )
        init_from = init_from or old_from
    flags = _task_flags(weights, data) | fit_flags(
        k=k, experts=experts, max_epochs=max_epochs, batch_size=batch_size, lr=lr, devices=devices,
        seed=seed, num_nodes=num_nodes,
    )  # fmt: skip
    base: dict[str, Any] = {"data": data, "init_from": init_from, "run": run_of(resume, out)}
    resolved, chosen = _told_once(config, router, flags, set_ or [], **base)
    if overwrite:
        check_place(out, {"--data": data, "--config": _own(config), "--init-from": init_from})
    if evaluate is not None:
        check_split("--evaluate", evaluate)
    launch.check_minutes(minutes, resolved.trainer.processes)
    if _runs_in_workers(resolved, dry_run):
        return
    logger.info("loading torch and lightning ...")
    from recsys_moe.train import fit as train

    with _memory_of(resolved):
        how: dict[str, Any] = {"overwrite": overwrite, "resume": resume, "init_from": init_from}
        how["chosen"] = chosen
        if dry_run:
            print(json.dumps(train.dry_run(resolved, data, out, **how), indent=2))
            return
        result = train.fit(resolved, data, out, **how, minutes=_left(minutes))
    if result:  # otherwise another process of the run reports
        _tell(result, out, data, evaluate, as_json=as_json)


def _told_once(*asked: Any, **base: Any) -> tuple[Config, list[Choice]]:
    """`resolve_with_choices`, whose log the processes of `run_workers` leave to their starter."""
    if REPORTS in os.environ:
        logging.disable()
    try:
        return resolve_with_choices(*asked, **base)
    finally:
        logging.disable(logging.NOTSET)


def _left(minutes: float | None) -> float | None:
    """Of `--minutes`, which count from the start of the command: without the loading so far."""
    return minutes and max(minutes - (time.monotonic() - STARTED) / 60, minutes / 2)


def _runs_in_workers(config: Config, dry_run: bool) -> bool:
    """Train in a process per device, where there are several; whether that was all."""
    trainer = config.trainer
    if trainer.processes == 1 or is_started_outside():
        return False
    launch.check_nodes(trainer.num_nodes)
    if not dry_run:
        launch.run_workers(trainer.devices, trainer.num_nodes)
    return not dry_run


def finish(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")],
    data: MovedData = None,
    evaluate: Evaluate = None,
    as_json: Json = False,
) -> None:
    """Finish an interrupted run: export its best epoch as a model.

    `fit` does this when it ends.
    """
    if evaluate is not None:
        check_split("--evaluate", evaluate)
    logger.info("loading torch and lightning ...")
    from recsys_moe.train.finalize import finish_early

    _tell(finish_early(run, data), run, data, evaluate, as_json=as_json)


def _tell(
    result: dict[str, Any], out: Path, data: Path | None, split: str | None, *, as_json: bool
) -> None:
    """Print the result of a run, its sampled ranking and the metrics of `split`."""
    more = {split: inference.evaluated(out, split, data)} if split is not None else {}
    ranking = inference.sampled(out, result, data)
    if as_json:
        print(json.dumps({**result, **({"ranking": ranking} if ranking else {}), **more}))
    else:
        print(_summary(result, ranking, more, out=out))


def _own(config: str | None) -> Path | None:
    """The file of `--config`; None for a shipped configuration."""
    return Path(config) if config and Path(config).is_file() else None


def _task_flags(weights: str | None, data: Path) -> dict[str, Any]:
    """Keys of the configuration for `--weights`."""
    if weights is None:
        return {}
    from recsys_moe.lab.compare.plan import parse_weights
    from recsys_moe.schema import Schema

    schema = Schema.load(data)
    pairs = zip(schema.tasks, parse_weights(weights, schema), strict=True)
    return {f"tasks.{task.name}.weight": weight for task, weight in pairs}


@contextmanager
def _memory_of(config: Config) -> Iterator[None]:
    """Raise ConfigError naming the size farthest above its default when memory runs out."""
    from recsys_moe.config.diff import flat
    from recsys_moe.config.settings import parse_config

    try:
        yield
    except (MemoryError, RuntimeError, TypeError) as error:
        if not (isinstance(error, MemoryError) or NO_MEMORY.search(str(error))):
            raise
        given, usual = (dict(flat(c.model_dump(mode="json"))) for c in (config, parse_config({})))
        key = max(SIZES, key=lambda key: given[key] / usual[key])
        others = ", ".join(other for other in SIZES if other != key)
        raise ConfigError(
            f"out of memory with {key}={given[key]} (default {usual[key]}); "
            f"choose a smaller value, or lower {others}"
        ) from None


def _summary(
    result: dict[str, Any],
    ranking: dict[str, Any] | None,
    more: dict[str, dict[str, Any]],
    *,
    out: Path,
) -> str:
    title = f"best epoch {result['epoch']} by {result['monitor']} on val"
    lines = [
        evaluation_text.table(result, title),
        *(evaluation_text.sample_lines(ranking) if ranking else ()),
    ]
    lines += [
        evaluation_text.table(found, f"{split}, {found['rows']} rows")
        for split, found in more.items()
    ]
    return "\n".join([*lines, f"run: {out}   model: {out / 'model'}"])
