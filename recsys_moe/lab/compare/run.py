"""compare: routers x task weights x seeds as run folders, resumable, and the tables over them."""

from __future__ import annotations

import signal
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from recsys_moe.errors import Interrupted, RunError
from recsys_moe.files import write_json, write_text
from recsys_moe.lab.compare import tables as compare_tables
from recsys_moe.lab.compare.plan import Plan, Request, check_folder, make_plan, settle
from recsys_moe.lab.compare.results import Results, collect, log_file, run_folder
from recsys_moe.lab.compare.significance import load_scipy_stats
from recsys_moe.lab.jobs.executor import Executor, Job, LocalExecutor
from recsys_moe.lab.jobs.local_runs import (
    Progress,
    alone,
    check_jobs,
    evaluate_step,
    fit_step,
    workers,
)
from recsys_moe.schema import Schema


@dataclass(frozen=True)
class Comparison:
    results: Results
    failures: list[str]
    """A failed run each: its name, exit code and log."""

    def check(self) -> None:
        """Raise RunError naming the runs that failed."""
        if self.failures:
            raise RunError(
                f"{len(self.failures)} of the runs failed: {'; '.join(self.failures)}; "
                "the same command tries them again"
            )


def compare(
    request: Request,
    data: Path,
    out: Path,
    *,
    jobs: int | None = None,
    executor: Executor | None = None,
) -> Comparison:
    """Run what is missing at `out`, then write results.json and the tables there.

    `jobs`: processes at a time, by default one per core, or one where they would share a GPU.
    `executor`: where runs run instead of in processes of this machine.
    Raises ConfigError, DataError, and Interrupted on SIGINT and SIGTERM.
    """
    data, out = Path(data), Path(out)
    load_scipy_stats()  # missing: better said now than after the runs
    check_jobs(jobs)
    check_folder(out)
    plan = make_plan(request, data)
    with alone(out) as lock:
        plan = settle(plan, out)
        configs = [contender.config for contender in plan.contenders.values()]
        runs = len(plan.contenders) * len(plan.seeds)
        executor = executor or LocalExecutor(*workers(configs, jobs, runs), inherited=lock)
        failures = _run(plan, data, out, executor)
        return Comparison(_write(plan, data, out), failures)


def _run(plan: Plan, data: Path, out: Path, executor: Executor) -> list[str]:
    """Failures, in words."""
    jobs = [_job(plan, data, out, key, seed) for key, seed in plan.runs()]
    progress = Progress(len(jobs), "runs")
    try:
        with closing(executor.run(jobs)) as outcomes:
            for outcome in outcomes:
                if outcome.started:
                    _write(plan, data, out)
                progress.add(outcome)
    except (KeyboardInterrupt, SystemExit) as stop:
        number = signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM
        raise Interrupted(
            f"interrupted; {progress.done} of {len(jobs)} runs are finished in {out}: "
            "the same command continues",
            number,
        ) from None
    return progress.failures


def _job(plan: Plan, data: Path, out: Path, key: str, seed: int) -> Job:
    run, log = run_folder(out, key, seed), log_file(out, key, seed)
    config = out / "configs" / f"{key}.yaml"
    if not config.is_file():
        write_text(config, yaml.safe_dump(plan.contenders[key].config, sort_keys=False))
    paths = ["--data", str(data), "--config", str(config), "--seed", str(seed), "--out", str(run)]
    if plan.split != "val":  # which `fit` evaluates in any case
        paths += ["--evaluate", plan.split]
    # The second step is for a run that was stopped between the two.
    steps = fit_step(run, paths), evaluate_step(run, plan.split, data)
    return Job(run.name, steps, log)


def _write(plan: Plan, data: Path, out: Path) -> Results:
    results = collect(plan, Schema.load(data), out)
    notes = compare_tables.notes_of(results)
    write_json(out / "results.json", {**asdict(results), "notes": notes})
    write_text(out / "table.md", compare_tables.markdown(results))
    write_text(out / "table.tex", compare_tables.latex(results))
    write_text(out / "table.csv", compare_tables.csv_text(results))
    return results
