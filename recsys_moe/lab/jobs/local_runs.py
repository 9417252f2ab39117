"""Shared by `compare` and `tune`: the lock of the folder, workers, progress, interruption."""

from __future__ import annotations

import logging
import math
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from recsys_moe.errors import ConfigError, Interrupted, RunError
from recsys_moe.interrupts import received, unwinding
from recsys_moe.lab.jobs.executor import LocalExecutor, Outcome, locked
from recsys_moe.machine import cores

logger = logging.getLogger("recsys_moe.local_runs")
SECONDS_TO_WAIT = 40.0
"""For the processes of an earlier command that was killed to end."""


Results = TypeVar("Results")


@dataclass(frozen=True)
class Finished(Generic[Results]):
    """The outcome of a comparison or a study."""

    results: Results
    noun: str
    """`runs` or `trials`."""
    failures: list[str]
    """Name, exit code and log of each failed run."""

    def check(self) -> None:
        """Raise RunError naming the runs that failed."""
        if self.failures:
            raise RunError(
                f"{len(self.failures)} of the {self.noun} failed: {'; '.join(self.failures)}; "
                "run the same command again to retry them"
            )


def check_jobs(jobs: int | None) -> None:
    """Raise ConfigError for more processes than cores."""
    if jobs is not None and not 1 <= jobs <= cores():
        raise ConfigError(
            f"--jobs must be in 1..{cores()}, the cores of this machine, got {jobs}; "
            "omit it to use all cores"
        )


def local_executor(
    configs: Iterable[dict[str, Any]], jobs: int | None, runs: int, lock: tuple[int, ...]
) -> LocalExecutor:
    """Local processes with at most as many threads in total as cores.

    `configs`: resolved configurations of the runs; `runs`: how many there are; `lock`: of `alone`.
    """
    on_gpu = {config["trainer"]["accelerator"] for config in configs} != {"cpu"}
    wanted = jobs or (1 if on_gpu and torch.cuda.is_available() else cores())
    at_once = max(min(wanted, runs), 1)
    return LocalExecutor(at_once, cores() // at_once, inherited=lock)


@contextmanager
def alone(out: Path) -> Iterator[tuple[int, ...]]:
    """Hold the lock of `out`; yields its file descriptors.

    Child processes inherit them, so that the lock outlives a killed parent until they end.
    Raises RunError on a timeout.
    """
    out.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":
        yield ()
        return
    deadline = time.monotonic() + SECONDS_TO_WAIT
    with (out / ".lock").open("ab") as stream:
        while not locked(stream):
            if time.monotonic() > deadline:
                raise RunError(
                    f"--out {out} is in use by another command or its runs; wait for it or stop it"
                )
            time.sleep(0.2)
        yield (stream.fileno(),)


class Progress:
    """Log lines: finished runs, failures, and the estimated time left."""

    def __init__(self, total: int, noun: str, done: int = 0) -> None:
        """`noun`: runs or trials; `done`: finished before."""
        self.total, self.noun, self.done, self.ran = total, noun, done, 0
        self.failures: list[str] = []
        self.start = time.monotonic()

    def add(self, outcome: Outcome, remark: str = "") -> None:
        """Count a job that has ended; `remark` follows its name."""
        job = outcome.job
        self.ran += outcome.started > 0
        if outcome.exit_code:
            self.failures.append(f"{job.name} (exit {outcome.exit_code}, log {job.log})")
            logger.error("failed: %s", self.failures[-1])
        else:
            self.done += 1
        if outcome.started:
            counted = f"{self.done} of {self.total} {self.noun}"
            logger.info("%s: %s%s%s", counted, job.name, remark, self._left())

    @contextmanager
    def interruptible(self, out: Path) -> Iterator[None]:
        """Turn Ctrl-C and SIGTERM in the block into Interrupted, which says how to continue."""
        try:
            with unwinding():
                yield
        except (KeyboardInterrupt, SystemExit) as stop:
            asked = signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM
            raise Interrupted(
                f"interrupted; {self.done} of {self.total} {self.noun} are finished in {out}: "
                "run the same command again to continue",
                received() or asked,
            ) from None

    def _left(self) -> str:
        left = self.total - self.done - len(self.failures)
        seconds = (time.monotonic() - self.start) / self.ran * left
        return f", about {math.ceil(seconds / 60)} min left" if left > 0 else ""
