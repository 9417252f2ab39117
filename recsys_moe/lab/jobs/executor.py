"""Runs jobs in local processes; another executor implements the same `run`."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from recsys_moe.train.processes.signals import end_with_parent
from recsys_moe.train.processes.starter import inherited

logger = logging.getLogger("recsys_moe.executor")
SECONDS_BETWEEN_LOOKS = 0.1
SECONDS_TO_STOP = 30.0

Step = Callable[[], list[str] | None]
"""Returns the command to run, or None if its result exists. Called when the step is due and again
after a lost worker; it may delete what cannot be resumed."""


@dataclass(frozen=True)
class Job:
    """Commands to run in sequence; the files on disk decide which are still to run."""

    name: str
    steps: tuple[Step, ...]
    log: Path
    """The commands and their output are appended here."""
    ends_early: Callable[[], bool] = lambda: False
    """Polled while a command runs: True stops it and completes the job."""


@dataclass(frozen=True)
class Outcome:
    job: Job
    exit_code: int
    """0, or the exit code of the failed command; negative for a signal."""
    started: int
    """Commands that were started; 0 when nothing was left to do."""


class Executor(Protocol):
    """Runs jobs. Finished steps are not repeated; a step with a lost worker is retried.

    A job is taken when a worker is free, so that it may depend on earlier outcomes.
    """

    def run(self, jobs: Iterable[Job]) -> Generator[Outcome]:
        """Yield outcomes as jobs end. Closing the generator stops running commands."""


class Process(Protocol):
    """A running command, with the interface of `subprocess.Popen`."""

    def poll(self) -> int | None:
        """The exit code, negative where a signal ended it; None while it runs."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it."""


Launch = Callable[[list[str], Path], Process]
"""Starts a command and appends its output to the log."""


def run_jobs(
    launch: Launch, jobs: Iterable[Job], *, workers: int, retries: int
) -> Generator[Outcome]:
    """See Executor.run. `workers`: commands at a time; `retries`: of a step with a lost worker."""
    waiting, more = iter(jobs), True
    running: dict[Generator[Process, None, Outcome], Process | None] = {}
    try:
        while more or running:
            while more and len(running) < workers:
                job = next(waiting, None)
                more = job is not None
                running |= {} if job is None else {_run_job(job, launch, retries): None}
            for under_way in list(running):
                try:
                    running[under_way] = next(under_way)
                except StopIteration as end:
                    del running[under_way]
                    yield end.value
            if len(running) == workers or not more:
                time.sleep(SECONDS_BETWEEN_LOOKS if running else 0)
    finally:
        stop([process for process in running.values() if process is not None])


def _run_job(job: Job, launch: Launch, retries: int) -> Generator[Process, None, Outcome]:
    """Yields the process while it runs."""
    started = 0
    for step in job.steps:
        lost = 0
        while (command := step()) is not None:
            started += 1
            process = launch(command, job.log)
            while (code := process.poll()) is None:
                yield process
                if job.ends_early():
                    stop([process])
                    return Outcome(job, 0, started)
            if code == 0:
                break
            if lost == retries or not _is_lost(code):
                return Outcome(job, code, started)
            lost += 1
            logger.warning("%s: worker lost (exit %d), retrying", job.name, code)
    return Outcome(job, 0, started)


def _is_lost(code: int) -> bool:
    """True after a signal: the system ran out of memory, or a person killed it.

    128 and its number is what `fit` itself, a shell or a container says of one. A command that ends
    by itself with an error would do so again.
    """
    return code < 0 or code - 128 in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class LocalExecutor:
    """Processes of this machine, `workers` at a time, each with `threads` threads."""

    workers: int
    threads: int
    retries: int = 2
    """Retries of a step whose worker was lost to a signal."""
    inherited: tuple[int, ...] = ()
    """File descriptors that the processes keep open, such as that of a lock."""

    def run(self, jobs: Iterable[Job]) -> Generator[Outcome]:
        """See Executor. Processes also end when this one is killed (Linux)."""
        return run_jobs(self.launch, jobs, workers=self.workers, retries=self.retries)

    def launch(self, command: list[str], log: Path) -> Process:
        """See Launch."""
        return start(command, log, env=self.environment(), pass_fds=self.inherited)

    def environment(self) -> dict[str, str]:
        """Environment of the processes: at most `threads` threads.

        Both variables get the same number: torch uses MKL's if they differ.
        """
        set_ = [os.environ.get(name, "") for name in THREADS]
        most = min([self.threads, *(int(value) for value in set_ if value.isdigit())])
        return {**inherited(), **dict.fromkeys(THREADS, str(most))}


def start(command: list[str], log: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that appends to `log` and locks it while it runs.

    `options`: of Popen.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab", buffering=0) as stream:
        stream.write(f"$ {shlex.join(command)}\n".encode())
        locked(stream)
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches us alone, and we stop each process once
            preexec_fn=_in_the_child() if os.name == "posix" else None,
            **options,
        )


def _in_the_child() -> Callable[[], None]:
    """End with the parent, and listen to Ctrl-C, which Ray blocks in its processes."""
    end = end_with_parent() if sys.platform == "linux" else None

    def prepare() -> None:
        if end is not None:
            end()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    return prepare


def locked(file: IO[bytes]) -> bool:
    """Lock a file; False if another process holds the lock. True on a disk without locks."""
    try:
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
    return True


def is_free(log: Path) -> bool:
    """True unless a process, on any machine, still writes to `log`."""
    if not log.exists():
        return True
    with log.open("ab") as stream:
        return locked(stream)


def stop(processes: Sequence[Process], seconds: float | None = None) -> None:
    """Send SIGTERM, wait for processes to save, then send SIGKILL."""
    seconds = SECONDS_TO_STOP if seconds is None else seconds
    for process in processes:
        process.terminate()
    try:
        _wait(processes, seconds)
    finally:  # also after a second Ctrl-C
        left = [process for process in processes if process.poll() is None]
        for process in left:
            process.kill()
        _wait(left, SECONDS_TO_STOP)


def _wait(processes: Sequence[Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(SECONDS_BETWEEN_LOOKS)
