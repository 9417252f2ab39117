"""What happens on a worker of a cluster: a command as a process, and what the worker sees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import recsys_moe
from recsys_moe.lab.jobs.executor import begun_log, stop
from recsys_moe.train.processes.signals import end_with_parent
from recsys_moe.train.processes.starter import inherited

SECONDS_BETWEEN_LOOKS = 0.1


def missing_on_worker(needed: list[str], version: str) -> str | None:
    """On a worker: what it lacks, in words."""
    if recsys_moe.__version__ != version:
        return f"recsys-moe must be {version}, got {recsys_moe.__version__}; install the same there"
    unseen = [path for path in needed if not Path(path).exists()]
    return f"it does not see {unseen[0]}; all nodes must share that folder" if unseen else None


def run_on_worker(
    command: list[str], python: str, log: str, folder: str, cpus: int, gpus: int, grace: float
) -> int:
    """On a worker: run a command to its end, or stop it when the task is cancelled.

    `python`: what the command calls Python, which here is the worker's own. The output goes to
    `log`, whose folder must be there; `grace`: seconds to end in when asked to. Returns the exit
    code, negative for a signal.
    """
    if not Path(log).parent.is_dir():
        raise FileNotFoundError(f"{Path(log).parent} is not on this node: it must be shared")
    own = [sys.executable if word == python else word for word in command]
    with begun_log(own, Path(log)) as stream:
        _hold(stream)
        process = subprocess.Popen(
            own,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=worker_environment(cpus, gpus),
            start_new_session=True,
            preexec_fn=_in_the_child(),
        )
        try:
            while process.poll() is None:
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            stop([process], grace)
    return process.returncode


def _in_the_child() -> Callable[[], None] | None:
    """End with the worker, and listen to Ctrl-C, which Ray blocks in its processes."""
    end = end_with_parent() if sys.platform == "linux" else None

    def prepare() -> None:
        if end is not None:
            end()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})

    return prepare if os.name == "posix" else None


def worker_environment(cpus: int, gpus: int) -> dict[str, str]:
    """The worker's environment without what describes the worker, and with limits."""
    limits = {"OMP_NUM_THREADS": str(cpus), "MKL_NUM_THREADS": str(cpus)}
    return {**inherited(), **limits, **({} if gpus else {"CUDA_VISIBLE_DEVICES": ""})}


def _hold(stream: BinaryIO) -> None:
    """Lock a log for as long as the process has it open that writes there, where that works."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_free(log: Path) -> bool:
    """True unless a process on some node still writes to `log`."""
    try:
        import fcntl

        with log.open("ab") as stream:
            fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # no log yet, or a disk without locks
        return True
    return True
