"""Runs jobs to their end. Local processes here; any other executor has the same one method."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from recsys_moe.train.processes.signals import end_with_parent
from recsys_moe.train.processes.spinning import undecided
from recsys_moe.train.processes.starter import inherited

logger = logging.getLogger("recsys_moe.executor")
SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_TO_STOP = 30.0

Step = Callable[[], list[str] | None]
"""Asked when its turn comes, and again after a lost worker: the command that is still to run, or
None where its result is there already. It may clear away what cannot be continued."""


@dataclass(frozen=True)
class Job:
    """Commands to run one after the other; the state on disk says which are still to run."""

    name: str
    steps: tuple[Step, ...]
    log: Path
    """Receives the commands and their output, behind what earlier attempts have left there."""
    ends_early: Callable[[], bool] = lambda: False
    """Asked again and again while a command runs: True stops it, and the job is done."""


@dataclass(frozen=True)
class Outcome:
    job: Job
    exit_code: int
    """0, or that of the command that failed; negative: the signal that ended it."""
    started: int
    """Commands that were started; 0 when nothing was left to do."""


class Executor(Protocol):
    """Where jobs run. A finished step is never repeated, a lost worker is tried again.

    A job is taken when a worker is free for it, so that it may depend on outcomes so far.
    """

    def run(self, jobs: Iterable[Job]) -> Generator[Outcome]:
        """Outcomes in the order in which jobs end. Closing the generator stops what runs."""


class Process(Protocol):
    """A command under way, seen as `subprocess.Popen` is."""

    def poll(self) -> int | None:
        """The exit code, negative where a signal ended it; None while it runs."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""


class Launcher(Protocol):
    """Starts commands somewhere; `run_jobs` does the rest."""

    @property
    def workers(self) -> int:
        """Commands at a time."""

    @property
    def retries(self) -> int:
        """How often a step is tried again after its worker was lost to a signal."""

    def launch(self, command: list[str], log: Path) -> Process:
        """Start a command with its output behind what `log` holds."""


def run_jobs(launcher: Launcher, jobs: Iterable[Job]) -> Generator[Outcome]:
    """See Executor.run."""
    waiting, more, running = iter(jobs), True, list[_Worker]()
    try:
        while more or running:
            while more and len(running) < launcher.workers:
                job = next(waiting, None)
                more = job is not None
                running += [] if job is None else [_Worker(job, launcher)]
            for worker in list(running):
                if (outcome := worker.look()) is not None:
                    running.remove(worker)
                    yield outcome
            if len(running) == launcher.workers or not more:
                time.sleep(SECONDS_BETWEEN_LOOKS if running else 0)
    finally:
        stop([worker.process for worker in running if worker.process is not None])


@dataclass(frozen=True)
class LocalExecutor:
    """Processes of this machine, `workers` at a time, each with `threads` threads."""

    workers: int
    threads: int
    retries: int = 2
    """How often a step is tried again after its worker was lost to a signal."""
    inherited: tuple[int, ...] = ()
    """File descriptors that the processes keep open, such as that of a lock."""

    def run(self, jobs: Iterable[Job]) -> Generator[Outcome]:
        """See Executor. Processes also end when this one is killed (Linux)."""
        return run_jobs(self, jobs)

    def launch(self, command: list[str], log: Path) -> Process:
        """See Launcher."""
        with begun_log(command, log) as stream:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                start_new_session=True,  # Ctrl-C reaches us alone, and we stop each process once
                preexec_fn=end_with_parent() if sys.platform == "linux" else None,
                pass_fds=self.inherited,
            )

    def environment(self) -> dict[str, str]:
        """The processes' environment: no more threads than `threads`, fewer where set so."""
        set_ = {name: os.environ.get(name, "") for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        limits = {
            name: str(min(int(value), self.threads) if value.isdigit() else self.threads)
            for name, value in set_.items()
        }
        return {**undecided(inherited()), **limits}


class _Worker:
    """A job under way, with at most one process at a time."""

    def __init__(self, job: Job, launcher: Launcher) -> None:
        self.job, self.launcher = job, launcher
        self.steps = deque(job.steps)
        self.process: Process | None = None
        self.lost = self.started = 0
        self.deadline: float | None = None
        """When a process that was asked to stop has had its time."""

    def look(self) -> Outcome | None:
        """Start the next command when the last one has ended; the outcome at the end."""
        code = 0 if self.process is None else self.process.poll()
        if code is None:
            self._watch()
            return None
        if self.deadline is not None:
            return Outcome(self.job, 0, self.started)
        if self.process is not None and code == 0:
            self.steps.popleft()
            self.lost = 0
        self.process = None
        if code != 0 and not self._try_again(code):
            return Outcome(self.job, code, self.started)
        return self._start()

    def _watch(self) -> None:
        """Stop the process where the job ends early."""
        assert self.process is not None
        if self.deadline is None and self.job.ends_early():
            self.process.terminate()
            self.deadline = time.monotonic() + SECONDS_TO_STOP
        elif self.deadline is not None and time.monotonic() > self.deadline:
            self.process.kill()

    def _try_again(self, code: int) -> bool:
        """True after a signal (the system ran out of memory, a person killed it) and not too often.

        A command that ends by itself with an error would do so again.
        """
        lost = code < 0 or code in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        if not lost or self.lost == self.launcher.retries:
            return False
        self.lost += 1
        logger.warning("%s: worker lost (exit %d), trying again", self.job.name, code)
        return True

    def _start(self) -> Outcome | None:
        while self.steps:
            command = self.steps[0]()
            if command is not None:
                self.started += 1
                self.process = self.launcher.launch(command, self.job.log)
                return None
            self.steps.popleft()
        return Outcome(self.job, 0, self.started)


def begun_log(command: list[str], log: Path) -> BinaryIO:
    """`log`, open at its end, with the command written there."""
    log.parent.mkdir(parents=True, exist_ok=True)
    stream = log.open("ab", buffering=0)
    stream.write(f"$ {shlex.join(command)}\n".encode())
    return stream


def stop(processes: Sequence[Process], seconds: float | None = None) -> None:
    """SIGTERM, time to save what is finished, then SIGKILL."""
    deadline = time.monotonic() + (SECONDS_TO_STOP if seconds is None else seconds)
    for process in processes:
        process.terminate()
    try:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))
    finally:  # also after a second Ctrl-C
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
