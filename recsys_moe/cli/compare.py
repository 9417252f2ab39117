"""`recsys-moe compare`."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from recsys_moe.cli.configuration import fit_flags, typed_sections
from recsys_moe.cli.options import (
    Address,
    BatchSize,
    ConfigFile,
    Continued,
    CpusPerRun,
    Data,
    Devices,
    Engine,
    Experts,
    GpusPerRun,
    Jobs,
    Json,
    Lr,
    MaxEpochs,
    Ranking,
    Sets,
    opt,
)

if TYPE_CHECKING:
    from recsys_moe.lab.compare.results import Results

logger = logging.getLogger("recsys_moe.compare")


Weights = Annotated[
    list[str] | None, opt("Loss weight of each task, e.g. 0.9,0.1. Repeatable.", metavar="W,...")
]
Settings = Annotated[Path | None, opt("YAML file with configuration sections per router.")]


def compare(
    data: Data,
    routers: Annotated[
        str, opt("Routers to compare, e.g. moesart,topk, or `all`.", metavar="NAME,...")
    ],
    out: Continued,
    seeds: Annotated[int, opt("Runs per router and setting of task weights.", min=1)] = 5,
    weights: Weights = None,
    settings: Settings = None,
    split: Annotated[str, opt("Split to compare on: train, val or test.")] = "test",
    ranking: Ranking = False,
    jobs: Jobs = None,
    engine: Engine = "local",
    address: Address = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    config: ConfigFile = None,
    k: Annotated[int | None, opt("Experts selected per example, of routers with a k.")] = None,
    experts: Experts = None,
    max_epochs: MaxEpochs = None,
    batch_size: BatchSize = None,
    lr: Lr = None,
    seed: Annotated[int, opt("First seed; the others follow.", min=0)] = 0,
    devices: Devices = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Compare routers over seeds and task weights.

    Writes tables with significance tests. Run it again to continue, or to add runs.
    """
    flags = fit_flags(
        k=k, experts=experts, max_epochs=max_epochs, batch_size=batch_size, lr=lr, devices=devices
    )
    from recsys_moe.lab.jobs.engines import choose_executor

    executor = choose_executor(
        engine, address, out, needed=[data], jobs=jobs, cpus=cpus_per_run, gpus=gpus_per_run
    )
    logger.info("loading torch ...")
    from recsys_moe.config.files import read_config_file
    from recsys_moe.lab.compare import run as comparisons
    from recsys_moe.lab.compare.request import ComparisonRequest

    request = ComparisonRequest(
        routers=_labels(routers),
        seeds=range(seed, seed + seeds),
        weights=weights or [],
        split=split,
        ranking=ranking,
        settings=read_sections("--settings", settings),
        file=read_config_file(config, warn=True) if config else None,
        typed=typed_sections(flags, set_ or []),
    )
    if request.settings:
        for label in sorted(set(request.routers) - set(request.settings)):
            logger.info("--settings has no section for %s", label)
    comparison = comparisons.compare(request, data, out, jobs=jobs, executor=executor)
    print_comparison(comparison.results, out, as_json)
    comparison.check()


def _labels(routers: str) -> list[str]:
    from recsys_moe.routers import ROUTERS

    labels = [name.strip() for name in routers.split(",") if name.strip()]
    return list(ROUTERS) if labels == ["all"] else labels


def print_comparison(results: Results, out: Path, as_json: bool) -> None:
    """Print tables on a terminal, table.md elsewhere, or results.json."""
    if as_json or not sys.stdout.isatty():
        text = (out / "table.md").read_text("utf-8")
        return print_results(out / "results.json", text, as_json)
    from rich.console import Console

    from recsys_moe.lab.compare.terminal import show

    show(results, Console())
    print(f"\n{out / 'table.md'}, table.tex, table.csv, runs.csv, epochs.csv, results.json")


def print_results(file: Path, text: str, as_json: bool) -> None:
    """Print a file of JSON in one line, or `text`."""
    print(f"{json.dumps(json.loads(file.read_text('utf-8')))}\n" if as_json else text, end="")


def read_sections(option: str, file: Path | None) -> dict[str, Any] | None:
    """The YAML file of an option. Raises ConfigError; shipped configurations do not count."""
    from recsys_moe.config.files import read_config_file
    from recsys_moe.errors import ConfigError

    if file is not None and not file.is_file():
        raise ConfigError(f"{option} {file}: no such file; pass a YAML file of settings")
    return None if file is None else read_config_file(str(file))
