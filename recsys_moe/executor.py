"""Runs jobs to their end. Local processes here; any other executor has the same one method."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

logger = logging.getLogger("recsys_moe.executor")
SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_TO_STOP = 30.0
SIGNAL_AT_PARENT_DEATH = 1  # linux/prctl.h

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


@dataclass(frozen=True)
class Outcome:
    job: Job
    exit_code: int
    """0, or that of the command that failed; negative: the signal that ended it."""
    started: int
    """Commands that were started; 0 when nothing was left to do."""


class Executor(Protocol):
    """Where jobs run. A finished step is never repeated, a lost worker is tried again."""

    def run(self, jobs: Iterable[Job]) -> Generator[Outcome]:
        """Outcomes in the order in which jobs end. Closing the generator stops what runs."""


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
        waiting, running = deque(jobs), list[_Worker]()
        try:
            while waiting or running:
                while waiting and len(running) < self.workers:
                    running.append(_Worker(waiting.popleft(), self))
                for worker in list(running):
                    if (outcome := worker.look()) is not None:
                        running.remove(worker)
                        yield outcome
                if len(running) == self.workers or not waiting:
                    time.sleep(SECONDS_BETWEEN_LOOKS if running else 0)
        finally:
            _stop([worker.process for worker in running if worker.process is not None])

    def environment(self) -> dict[str, str]:
        """The processes' environment: no more threads than `threads`, fewer where set so."""
        set_ = {name: os.environ.get(name, "") for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        limits = {
            name: str(min(int(value), self.threads) if value.isdigit() else self.threads)
            for name, value in set_.items()
        }
        return {**os.environ, **limits}


class _Worker:
    """A job under way, with at most one process at a time."""

    def __init__(self, job: Job, executor: LocalExecutor) -> None:
        self.job, self.executor = job, executor
        self.steps = deque(job.steps)
        self.process: subprocess.Popen[bytes] | None = None
        self.lost = self.started = 0

    def look(self) -> Outcome | None:
        """Start the next command when the last one has ended; the outcome at the end."""
        code = 0 if self.process is None else self.process.poll()
        if code is None:
            return None
        if self.process is not None and code == 0:
            self.steps.popleft()
            self.lost = 0
        self.process = None
        if code != 0 and not self._try_again(code):
            return Outcome(self.job, code, self.started)
        return self._start()

    def _try_again(self, code: int) -> bool:
        """True after a signal (the system ran out of memory, a person killed it) and not too often.

        A command that ends by itself with an error would do so again.
        """
        lost = code < 0 or code in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        if not lost or self.lost == self.executor.retries:
            return False
        self.lost += 1
        logger.warning("%s: worker lost (exit %d), trying again", self.job.name, code)
        return True

    def _start(self) -> Outcome | None:
        while self.steps:
            command = self.steps[0]()
            if command is not None:
                self.started += 1
                self.process = _launch(command, self.job.log, self.executor)
                return None
            self.steps.popleft()
        return Outcome(self.job, 0, self.started)


def _launch(command: list[str], log: Path, executor: LocalExecutor) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab", buffering=0) as stream:
        stream.write(f"$ {shlex.join(command)}\n".encode())
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=executor.environment(),
            start_new_session=True,  # Ctrl-C reaches us alone, and we stop each process once
            preexec_fn=end_with_parent() if sys.platform == "linux" else None,
            pass_fds=executor.inherited,
        )


def end_with_parent() -> Callable[[], object]:
    """To be called in the child: SIGTERM when its parent dies, even of SIGKILL."""
    prctl = ctypes.CDLL(None).prctl  # before the fork: loading it there might wait for a lock
    return lambda: prctl(SIGNAL_AT_PARENT_DEATH, signal.SIGTERM)


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """SIGTERM, time to save what is finished, then SIGKILL."""
    deadline = time.monotonic() + SECONDS_TO_STOP
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
