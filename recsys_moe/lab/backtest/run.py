"""backtest: resumable runs over the periods after a moment, and their metrics.

The model of the rows before the start predicts all periods; that is `none`, and the first period of
the other updates. They train a run for each later period, on the rows before it, and predict it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import yaml

from recsys_moe.files import write_text
from recsys_moe.lab.backtest import results as backtest_results
from recsys_moe.lab.backtest.plan import BacktestPlan, BacktestRequest, make_plan, settle
from recsys_moe.lab.backtest.results import run_of
from recsys_moe.lab.jobs.executor import Executor, Job
from recsys_moe.lab.jobs.local_runs import Finished, Progress, alone, local_executor
from recsys_moe.lab.jobs.plan_file import Raw, check_folder
from recsys_moe.schema import SCHEMA_FILE

Cut = Callable[[Path, int, int | None], object]
"""Writes the rows before a moment (seconds) and those from then to before another as a folder."""


def backtest(
    request: BacktestRequest,
    data: Path,
    out: Path,
    open_log: Callable[[Path], Cut],
    *,
    executor: Executor | None = None,
) -> Finished[Raw]:
    """Run what is missing at `out`, then write results.json, periods.csv and periods.svg there.

    `open_log`: reads `data`, to be cut in time. Raises ConfigError, DataError, and Interrupted on
    SIGINT and SIGTERM.
    """
    data, out = Path(data), Path(out)
    check_folder(out, "backtest")
    plan = make_plan(request, data)
    with alone(out) as lock:
        settle(plan, out)
        executor = executor or local_executor([plan.config], 1, 1, lock)
        steps = Steps(plan, request, out, lambda: open_log(data))
        progress = Progress(steps.total, "models")
        with progress.interruptible(out), closing(executor.run(steps.jobs())) as outcomes:
            for outcome in outcomes:
                if outcome.started:
                    backtest_results.write(plan, request, out)
                progress.add(outcome)
        return Finished(backtest_results.write(plan, request, out), "models", progress.failures)


class Steps:
    """The runs of a backtest, in their order: one after the other."""

    def __init__(
        self, plan: BacktestPlan, request: BacktestRequest, out: Path, log: Callable[[], Cut]
    ) -> None:
        self.plan, self.out, self._open = plan, out, log
        self._cut: Cut | None = None
        self.trained = [update for update in request.updates if update != "none"]
        self.total = 1 + len(self.trained) * (len(plan.starts) - 1)

    def jobs(self) -> Iterator[Job]:
        """The one before the start, then period by period those of each update.

        A model that failed ends its chain of `continue`.
        """
        yield self._job("initial", 0)
        for period in range(1, len(self.plan.starts)):
            for update in self.trained:
                before = run_of(self.out, update, period - 1)
                if update != "continue" or before.is_trained:
                    yield self._job(update, period, before.folder)

    def _job(self, update: str, period: int, before: Path | None = None) -> Job:
        run, data = run_of(self.out, update, period), self.out / "data" / f"{period + 1:03d}"
        is_warm = update == "continue"
        config, start = self._config(update), before if is_warm else None
        count = 1 if period else len(self.plan.starts)
        fit = run.fit_step(data, config, init_from=start)
        evaluate = run.evaluate_step("test", data, "--periods", str(count))

        def fit_on_rows() -> list[str] | None:
            if not (data / SCHEMA_FILE).is_file():
                self._write_data(data, period)
            return fit()

        return Job(run.name, (fit_on_rows, evaluate), run.log)

    def _write_data(self, data: Path, period: int) -> None:
        """The first folder holds all rows to the end, the others end with their period."""
        if self._cut is None:
            self._cut = self._open()
        starts = self.plan.starts
        is_last = period in (0, len(starts) - 1)
        self._cut(data, starts[period], None if is_last else starts[period + 1])

    def _config(self, update: str) -> Path:
        """The configuration of a run, as a file."""
        is_warm = update == "continue"
        file, config = self.out / "configs" / f"{'continue' if is_warm else 'fit'}.yaml", None
        if not file.is_file():
            config = self.plan.config
            if is_warm:
                epochs = {"max_epochs": self.plan.continue_epochs}
                config = {**config, "trainer": {**config["trainer"], **epochs}}
            write_text(file, yaml.safe_dump(config, sort_keys=False))
        return file
