"""`recsys-moe backtest`."""

from __future__ import annotations

import logging
from typing import Annotated

from recsys_moe.cli.compare import print_results
from recsys_moe.cli.configuration import fit_flags, resolve
from recsys_moe.cli.options import (
    BatchSize,
    ConfigFile,
    Continued,
    Data,
    Devices,
    Experts,
    Json,
    K,
    Lr,
    MaxEpochs,
    RouterName,
    Sets,
    opt,
)

logger = logging.getLogger("recsys_moe.backtest")


def backtest(
    data: Data,
    out: Continued,
    start: Annotated[
        str,
        opt(
            "First moment to predict: a date, seconds since 1970, or the share of rows before it.",
            metavar="TIME|SHARE",
        ),
    ] = "0.8",
    periods: Annotated[int, opt("Periods from there on, of equal row counts.")] = 10,
    update: Annotated[
        str,
        opt("After each period: none, continue (warm start), retrain.", metavar="UPDATE,..."),
    ] = "none,continue,retrain",
    continue_epochs: Annotated[int, opt("Epochs of each warm start.")] = 1,
    config: ConfigFile = None,
    router: RouterName = None,
    k: K = None,
    experts: Experts = None,
    max_epochs: MaxEpochs = None,
    batch_size: BatchSize = None,
    lr: Lr = None,
    seed: Annotated[int | None, opt("Random seed.")] = None,
    devices: Devices = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Predict a period, then learn it: how often should a model be trained?

    Run it again to continue.
    """
    flags = fit_flags(
        k=k, experts=experts, max_epochs=max_epochs, batch_size=batch_size, lr=lr, devices=devices,
        seed=seed,
    )  # fmt: skip
    logger.info("loading torch ...")
    from data_prep.cut import PreparedLog
    from recsys_moe.lab.backtest import plan, results, run
    from recsys_moe.lab.jobs.plan_file import follows_data
    from recsys_moe.schema import Schema

    plan.check_timed(Schema.load(data), data)
    base = data if follows_data(out) else None
    request = plan.BacktestRequest(
        config=resolve(config, router, flags, set_ or [], data=base),
        start=start,
        periods=periods,
        updates=plan.parse_updates(update),
        continue_epochs=continue_epochs,
    )
    done = run.backtest(request, data, out, lambda folder: PreparedLog(folder).cut)
    print_results(out / "results.json", f"{results.summary(done.results, out)}\n", as_json)
    done.check()
