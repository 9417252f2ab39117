"""`recsys-moe tune`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

from recsys_moe.cli.compare import print_results, read_sections
from recsys_moe.cli.configuration import fit_flags, resolve, typed_sections
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
    K,
    MaxEpochs,
    Sets,
    Weights,
    opt,
)

logger = logging.getLogger("recsys_moe.tune")

Space = Annotated[Path | None, opt("YAML file with ranges to search, over those of the router.")]
Pruner = Annotated[str | None, opt("asha or none; by default asha with tpe, none with random.")]
Storage = Annotated[str | None, opt("Optuna storage; by default OUT/study.db.", metavar="URL")]
EvaluateTest = Annotated[
    bool, opt("Also evaluate trials on test; the choice ignores it.", "--evaluate-test")
]
SearchedLr = Annotated[float | None, opt("Learning rate of Adam; then it is not searched.")]


def tune(
    data: Data,
    router: Annotated[str, opt("Router: a name from `recsys-moe routers`, or module:Class.")],
    trials: Annotated[int, opt("Trials in total.", min=1)],
    out: Continued,
    space: Space = None,
    sampler: Annotated[str, opt("tpe, or random (as in the paper).")] = "tpe",
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
    seed: Annotated[int, opt("Random seed of the search and of every trial.", min=0)] = 0,
    devices: Devices = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Search the hyperparameters of a router.

    Writes the best as YAML for `fit`. Run it again to continue, or with more trials.
    """
    flags = fit_flags(
        k=k, experts=experts, max_epochs=max_epochs, batch_size=batch_size, lr=lr, devices=devices
    )
    from recsys_moe.lab.jobs.engines import choose_executor
    from recsys_moe.lab.jobs.plan_file import follows_data

    given = {**flags, "trainer.seed": seed}
    resolved = resolve(config, router, given, set_ or [], data=data if follows_data(out) else None)
    executor = choose_executor(
        engine, address, out, needed=[data], jobs=jobs, cpus=cpus_per_run, gpus=gpus_per_run
    )
    logger.info("loading torch and optuna ...")
    from recsys_moe.config.diff import flat
    from recsys_moe.lab.tune import plan, results, run

    request = plan.StudyRequest(
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
    study = run.tune(request, data, out, jobs=jobs, executor=executor)
    print_results(out / "trials.json", f"{results.summary(study.results, out)}\n", as_json)
    study.check()
