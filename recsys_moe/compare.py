"""compare: routers x task weights x seeds as run folders, resumable, and the tables over them."""

from __future__ import annotations

import logging
import math
import os
import shutil
import signal
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import yaml

from recsys_moe import compare_tables
from recsys_moe.compare_plan import Plan, Request, check_folder, make_plan, settle
from recsys_moe.compare_results import Results, collect, log_file, run_folder
from recsys_moe.errors import ConfigError, Interrupted, RunError
from recsys_moe.executor import Executor, Job, LocalExecutor, Outcome
from recsys_moe.run_folder import write_json, write_text
from recsys_moe.schema import Schema
from recsys_moe.significance import load_scipy_stats

logger = logging.getLogger("recsys_moe.compare")
COMMAND = [sys.executable, "-m", "recsys_moe.cli"]
SECONDS_TO_WAIT = 40.0
"""For the processes of an earlier comparison that was killed to end."""


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
    with _alone(out) as lock:
        plan = settle(plan, out)
        executor = executor or LocalExecutor(*_workers(plan, jobs), inherited=lock)
        failures = _run(plan, data, out, executor)
        return Comparison(_write(plan, data, out), failures)


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_jobs(jobs: int | None) -> None:
    """Raise ConfigError when there would be more processes than cores."""
    if jobs is not None and not 1 <= jobs <= cores():
        raise ConfigError(
            f"--jobs must be in 1..{cores()}, the cores of this machine, got {jobs}; "
            "leave it out for the most"
        )


def _workers(plan: Plan, jobs: int | None) -> tuple[int, int]:
    """Processes at a time and threads of each: together never more than there are cores."""
    accelerators = {c.config["trainer"]["accelerator"] for c in plan.contenders.values()}
    on_gpu = bool(accelerators - {"cpu"}) and torch.cuda.is_available()
    wanted = jobs or (1 if on_gpu else cores())
    workers = min(wanted, len(plan.contenders) * len(plan.seeds))
    return workers, cores() // workers


@contextmanager
def _alone(out: Path) -> Iterator[tuple[int, ...]]:
    """Hold the lock of `out`; yields the descriptors that keep it while a process has them open.

    Processes inherit them: where we were killed, the lock is free when the last of them has ended.
    """
    out.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":
        yield ()
        return
    with (out / ".lock").open("w") as stream:
        _lock(stream.fileno(), out)
        yield (stream.fileno(),)


def _lock(descriptor: int, out: Path) -> None:
    """Wait a while for the lock. Raises RunError."""
    import fcntl

    deadline = time.monotonic() + SECONDS_TO_WAIT
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RunError(
                    f"--out {out} is in use by another compare or by runs that one has left; "
                    "wait for it or stop it"
                ) from None
        time.sleep(0.2)


def _run(plan: Plan, data: Path, out: Path, executor: Executor) -> list[str]:
    """Failures, in words."""
    jobs = [_job(plan, data, out, key, seed) for key, seed in plan.runs()]
    progress = _Progress(len(jobs))
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

    def fit() -> list[str] | None:
        if (run / "model" / "manifest.json").is_file():
            return None
        # A checkpoint that was cut off while it was written lacks the archive's directory.
        if zipfile.is_zipfile(run / "checkpoints" / "last.ckpt"):
            return [*COMMAND, "fit", *paths, "--resume", "auto"]
        if run.exists():
            shutil.rmtree(run)
        return [*COMMAND, "fit", *paths]

    def evaluate() -> list[str] | None:
        if (run / "evaluation" / f"{plan.split}.json").is_file():
            return None
        split = ["--split", plan.split, "--data", str(data)]
        return [*COMMAND, "evaluate", str(run), *split]

    return Job(run.name, (fit, evaluate), log)


class _Progress:
    """Plain lines: how many runs are finished, which failed, and how long the rest may take."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.ran = total, 0, 0
        self.failures: list[str] = []
        self.start = time.monotonic()

    def add(self, outcome: Outcome) -> None:
        job = outcome.job
        self.ran += outcome.started > 0
        if outcome.exit_code:
            self.failures.append(f"{job.name} (exit {outcome.exit_code}, log {job.log})")
            logger.error("failed: %s", self.failures[-1])
        else:
            self.done += 1
        if outcome.started:
            logger.info("%d of %d runs: %s%s", self.done, self.total, job.name, self._left())

    def _left(self) -> str:
        left = self.total - self.done - len(self.failures)
        seconds = (time.monotonic() - self.start) / self.ran * left
        return f", about {math.ceil(seconds / 60)} min left" if left else ""


def _write(plan: Plan, data: Path, out: Path) -> Results:
    results = collect(plan, Schema.load(data), out)
    notes = compare_tables.notes_of(results)
    write_json(out / "results.json", {**asdict(results), "notes": notes})
    write_text(out / "table.md", compare_tables.markdown(results))
    write_text(out / "table.tex", compare_tables.latex(results))
    write_text(out / "table.csv", compare_tables.csv_text(results))
    return results
