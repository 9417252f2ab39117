"""`recsys-moe tune`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recsys_moe.cli.compare import Address, CpusPerRun, Engine, GpusPerRun
from recsys_moe.cli.training import (
    BatchSize,
    ConfigFile,
    Experts,
    K,
    MaxEpochs,
    Sets,
    fit_flags,
    resolve,
)

if TYPE_CHECKING:
    from recsys_moe.lab.tune.results import Results

logger = logging.getLogger("recsys_moe.tune")

Space = Annotated[
    str | None, typer.Option(help="YAML: what to search, over the ranges of the router.")
]
Pruner = Annotated[
    str | None, typer.Option(help="asha or none; without it asha with tpe and none with random.")
]
Storage = Annotated[
    str | None, typer.Option(metavar="URL", help="Database; without it OUT/study.db.")
]
Weights = Annotated[
    str | None, typer.Option(metavar="W,...", help="Task weights in the data's order.")
]
EvaluateTest = Annotated[
    bool, typer.Option("--evaluate-test", help="Also evaluate on test, for the curve alone.")
]
Jobs = Annotated[
    int | None, typer.Option(help="Trials at a time; without it one per core, or one on a GPU.")
]
SearchedLr = Annotated[float | None, typer.Option(help="Learning rate of Adam; not searched then.")]


def tune(
    data: Annotated[Path, typer.Option(help="Prepared folder.")],
    router: Annotated[str, typer.Option(help="A name of `recsys-moe routers`, or module:Class.")],
    trials: Annotated[int, typer.Option(min=1, help="Trials in the whole study.")],
    out: Annotated[Path, typer.Option(help="Folder to create or to continue.")],
    space: Space = None,
    sampler: Annotated[str, typer.Option(help="tpe, or random as in the paper.")] = "tpe",
    pruner: Pruner = None,
    storage: Storage = None,
    weights: Weights = None,
    evaluate_test: EvaluateTest = False,
    jobs: Jobs = None,
    engine: Engine = "local",
    address: Address = None,
    cpus_per_run: CpusPerRun = None,
    gpus_per_run: GpusPerRun = None,
    config: ConfigFile = None,
    k: K = None,
    experts: Experts = None,
    max_epochs: MaxEpochs = None,
    batch_size: BatchSize = None,
    lr: SearchedLr = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the search and of every trial.")] = 0,
    devices: Annotated[int | None, typer.Option(help="Number of devices per trial.")] = None,
    set_: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print trials.json.")] = False,
) -> None:
    """Search the settings of a router: trials as run folders, the best one as YAML for fit.

    Starting it again repeats no finished trial; a larger --trials adds some.
    """
    flags = fit_flags(
        k=k, experts=experts, max_epochs=max_epochs, batch_size=batch_size, lr=lr, devices=devices
    )
    asked: dict[str, Any] = {
        "config": resolve(config, router, {**flags, "trainer.seed": seed}, set_ or []),
        "trials": trials,
        "weights": weights,
        "sampler": sampler,
        "pruner": pruner,
        "storage": storage,
        "evaluate_test": evaluate_test,
    }
    from recsys_moe.lab.jobs.engines import choose_executor

    executor = choose_executor(
        engine, address, out, needed=[data], jobs=jobs, cpus=cpus_per_run, gpus=gpus_per_run
    )
    logger.info("loading torch and optuna ...")
    from recsys_moe.lab.tune import run as studies
    from recsys_moe.lab.tune.plan import StudyRequest

    request = StudyRequest(fixed=_typed(set_ or [], flags), space=_read_space(space), **asked)
    jobs_here = jobs if executor is None else None
    study = studies.tune(request, data, out, jobs=jobs_here, executor=executor)
    _print_results(study.results, out, as_json)
    study.check()


def _print_results(results: Results, out: Path, as_json: bool) -> None:
    from recsys_moe.lab.tune.results import summary

    if as_json:
        print(json.dumps(json.loads((out / "trials.json").read_text(encoding="utf-8"))))
    else:
        print(summary(results, out))


def _typed(sets: list[str], flags: dict[str, Any]) -> list[str]:
    """Keys that stand on the command line."""
    from recsys_moe.config.diff import flat
    from recsys_moe.config.files import merge_all, parse_set

    typed = merge_all(map(parse_set, sets))
    given = [key for key, value in flags.items() if value is not None]
    return [*(key for key, _ in flat(typed)), *given]


def _read_space(file: str | None) -> dict[str, Any] | None:
    from recsys_moe.config.files import read_config_file
    from recsys_moe.errors import ConfigError

    if file is None:
        return None
    if not Path(file).is_file():
        raise ConfigError(f"--space {file}: there is no such file")
    return read_config_file(file)
