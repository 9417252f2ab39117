"""`recsys-moe tune`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from recsys_moe.cli.compare import (
    Address,
    CpusPerRun,
    Engine,
    GpusPerRun,
    print_results,
    read_sections,
)
from recsys_moe.cli.training import (
    BatchSize,
    ConfigFile,
    Experts,
    K,
    MaxEpochs,
    Sets,
    Weights,
    fit_flags,
    resolve,
    typed_sections,
)

logger = logging.getLogger("recsys_moe.tune")

Space = Annotated[
    Path | None, typer.Option(help="YAML file with ranges to search, over those of the router.")
]
Pruner = Annotated[
    str | None, typer.Option(help="asha or none; by default asha with tpe, none with random.")
]
Storage = Annotated[
    str | None, typer.Option(metavar="URL", help="Optuna storage; by default OUT/study.db.")
]
EvaluateTest = Annotated[
    bool,
    typer.Option("--evaluate-test", help="Also evaluate trials on test; the choice ignores it."),
]
Jobs = Annotated[
    int | None, typer.Option(help="Parallel trials; by default one per core, or one on a GPU.")
]
SearchedLr = Annotated[
    float | None, typer.Option(help="Learning rate of Adam; then it is not searched.")
]


def tune(
    data: Annotated[Path, typer.Option(help="Prepared folder.")],
    router: Annotated[
        str, typer.Option(help="Router: a name from `recsys-moe routers`, or module:Class.")
    ],
    trials: Annotated[int, typer.Option(min=1, help="Trials in total.")],
    out: Annotated[Path, typer.Option(help="Folder to create or continue.")],
    space: Space = None,
    sampler: Annotated[str, typer.Option(help="tpe, or random (as in the paper).")] = "tpe",
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
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of the search and of every trial.")
    ] = 0,
    devices: Annotated[int | None, typer.Option(help="Devices per trial.")] = None,
    set_: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print trials.json.")] = False,
) -> None:
    """Search the hyperparameters of a router.

    Writes the best configuration as YAML for `fit`. Run it again to continue; a larger --trials
    adds trials. Every trial is a run folder.
    """
    flags = fit_flags(
        k=k, experts=experts, max_epochs=max_epochs, batch_size=batch_size, lr=lr, devices=devices
    )
    resolved = resolve(config, router, {**flags, "trainer.seed": seed}, set_ or [])
    from recsys_moe.lab.jobs.engines import choose_executor

    executor = choose_executor(
        engine, address, out, needed=[data], jobs=jobs, cpus=cpus_per_run, gpus=gpus_per_run
    )
    logger.info("loading torch and optuna ...")
    from recsys_moe.config.diff import flat
    from recsys_moe.lab.tune import run as studies
    from recsys_moe.lab.tune.plan import StudyRequest
    from recsys_moe.lab.tune.results import summary

    request = StudyRequest(
        config=resolved,
        trials=trials,
        fixed=[key for key, _ in flat(typed_sections(flags, set_ or []))],
        space=read_sections("--space", space),
        weights=weights,
        sampler=sampler,
        pruner=pruner,
        storage=storage,
        evaluate_test=evaluate_test,
    )
    study = studies.tune(request, data, out, jobs=jobs, executor=executor)
    print_results(out / "trials.json", f"{summary(study.results, out)}\n", as_json)
    study.check()
