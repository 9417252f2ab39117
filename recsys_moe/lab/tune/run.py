"""tune: a resumable hyper-parameter search for one router, with a run folder per trial.

Only this process accesses the study. A trial is a `fit` in its own process; its metrics.csv has the
loss of every finished epoch, which decides about pruning.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from recsys_moe.artifact.monitor import find_monitor
from recsys_moe.errors import ConfigError
from recsys_moe.files import write_text
from recsys_moe.lab.jobs.executor import Executor, Job, Outcome
from recsys_moe.lab.jobs.lab_run import LabRun
from recsys_moe.lab.jobs.local_runs import Finished, Progress, alone, check_jobs, local_executor
from recsys_moe.lab.jobs.plan_file import Raw, check_folder
from recsys_moe.lab.tune import results as tune_results
from recsys_moe.lab.tune.plan import StudyPlan, StudyRequest, make_plan, settle
from recsys_moe.lab.tune.results import kept
from recsys_moe.lab.tune.storage import load_optuna, safe_storage
from recsys_moe.lab.tune.study import OpenTrial, Study
from recsys_moe.schema import Schema

logger = logging.getLogger("recsys_moe.tune")
NOT_FINITE = re.compile(r"^error: .* became (-?nan|-?inf|nan or infinite) by step", re.MULTILINE)
"""The error of `recsys_moe.train.finite.refuse`."""


Tuning = Finished[Raw]


def tune(
    request: StudyRequest,
    data: Path,
    out: Path,
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
) -> Tuning:
    """Run the study at `out` up to `request.trials` trials and write its results there.

    `jobs`: trials at a time, by default one per core, or one where they would share a GPU.
    `executor`: where trials run instead of in processes of this machine, without `jobs`.
    Raises ConfigError, DataError, RunError, and Interrupted on SIGINT and SIGTERM.
    """
    data, out = Path(data), Path(out)
    load_optuna()
    if executor is None:
        check_jobs(jobs)
    check_folder(out, "study")
    plan = make_plan(request, data, safe_storage(request.storage))
    with alone(out) as lock:
        plan = settle(plan, out)
        executor = executor or local_executor([plan.config], jobs, request.trials, lock)
        with closing(Study(plan, out, request.storage)) as study:
            search = _Search(plan, study, request, data=data, out=out)
            failures = search.run(executor)
            results = search.write()
            study.plot(out / "history.png")
        return Tuning(results, "trials", failures)


class _Search:
    """The running trials, between the study and the executor."""

    def __init__(
        self, plan: StudyPlan, study: Study, request: StudyRequest, *, data: Path, out: Path
    ) -> None:
        self.plan, self.study, self.data, self.out = plan, study, data, out
        self.request = request
        self.monitor = find_monitor(plan.config["trainer"]["monitor"], Schema.load(data))
        self.open: dict[str, OpenTrial] = {}
        """By name of their job."""

    def run(self, executor: Executor) -> list[str]:
        """Failures, in words."""
        entries = self.study.entries()
        finished = sum(entry.state != "running" for entry in entries)
        progress = Progress(max(self.request.trials, len(entries)), "trials", finished)
        with progress.interruptible(self.out), closing(executor.run(self._jobs())) as outcomes:
            for outcome in outcomes:
                self._settle(outcome, progress)
        return progress.failures

    def write(self) -> Raw:
        schema = Schema.load(self.data)
        results = tune_results.collect(self.plan, schema, self.study.entries(), self.out)
        tune_results.write(results, self.plan, self.out)
        return results

    def _jobs(self) -> Iterator[Job]:
        """Missing evaluations, then interrupted trials, then new ones."""
        entries = self.study.entries()
        for entry in entries:
            if entry.state == "complete" and self._lacks_test(entry.number):
                yield self._evaluation(entry.number)
        for entry in entries:
            if entry.state == "running":
                yield self._training(self.study.reopen(entry.number))
        for number in range(len(entries), self.request.trials):
            trial = self.study.ask()
            if trial is None:
                logger.warning(
                    "--trials %d: the search space has only %d different settings",
                    *(self.request.trials, number),
                )
                return
            yield self._training(trial)

    def _lacks_test(self, number: int) -> bool:
        run = self._run_of(number)
        return self.request.evaluate_test and run.is_trained and run.evaluation("test") is None

    def _run_of(self, number: int) -> LabRun:
        return tune_results.trial_run(self.out, number)

    def _evaluation(self, number: int) -> Job:
        run = self._run_of(number)
        return Job(f"test of {run.name}", (run.evaluate_step("test", self.data),), run.log)

    def _training(self, trial: OpenTrial) -> Job:
        run = self._run_of(trial.number)
        fit = run.fit_step(self.data, self._config(trial))
        self.open[run.name] = trial
        evaluate = run.evaluate_step("test", self.data)

        def test() -> list[str] | None:
            wanted = self.request.evaluate_test and not self._is_cut(trial)
            return evaluate() if wanted else None

        return Job(run.name, (fit, test), run.log, lambda: self._is_cut(trial))

    def _config(self, trial: OpenTrial) -> Path:
        file = self.out / "configs" / f"{trial.number:04d}.yaml"
        try:
            write_text(file, tune_results.trial_config(self.plan, trial.params))
        except ConfigError as error:
            raise ConfigError(
                f"trial {trial.number}: {error}; the search space has incompatible values; "
                "choose another --space and --out"
            ) from None
        return file

    def _is_cut(self, trial: OpenTrial) -> bool:
        return trial.report(kept(self._run_of(trial.number).folder, self.monitor).losses)

    def _settle(self, outcome: Outcome, progress: Progress) -> None:
        """Report the end of a trial to the study and to the log."""
        trial = self.open.pop(outcome.job.name, None)
        untested = trial is not None and self._is_untested(trial)
        ending = "" if trial is None else self._ending(trial)
        if ending and not untested:
            outcome = Outcome(outcome.job, 0, outcome.started)
        if outcome.started or trial is not None:
            self.write()
        if trial is not None or outcome.exit_code:
            progress.add(outcome, ending)

    def _is_untested(self, trial: OpenTrial) -> bool:
        """Fully trained, but without the requested test evaluation."""
        return not self._is_cut(trial) and self._lacks_test(trial.number)

    def _ending(self, trial: OpenTrial) -> str:
        """In words; empty for a failed trial, which stays open."""
        run = self._run_of(trial.number)
        if self._is_cut(trial):
            return f" pruned after epoch {max(kept(run.folder, self.monitor).losses)}"
        if (result := run.evaluation("val")) is not None:
            trial.complete(result["loss"])
            return f" val loss {result['loss']:.4f}"
        if NOT_FINITE.search(run.read_log().rpartition("\n$ ")[2]):
            trial.diverge()
            return " diverged"
        return ""
