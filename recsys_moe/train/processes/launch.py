"""Starts, watches and stops one process per device of this machine.

Standard library only. Lightning's launcher kills the command after an error in one process, and
torchrun always ends with exit code 1; torch.distributed.elastic handles signals that nohup ignores.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from recsys_moe.errors import ConfigError, UserError
from recsys_moe.files import write_json
from recsys_moe.interrupts import NUMBERS, REPORTS, SECONDS_OF_ONE_WISH, unwinding
from recsys_moe.machine import core_quota, cores
from recsys_moe.train.processes.signals import end_with_parent, handled
from recsys_moe.train.processes.starter import rank

SECONDS_BETWEEN_LOOKS = 0.05
SECONDS_TO_END = 15.0
"""For the others after a failure; the first process may have to clear a folder."""
SECONDS_WITHOUT_FIRST = 3.0
"""For the others once the first has ended, too: to say what they know. They leave nothing behind,
and some wait for one that will not come."""


class WorkerError(UserError):
    """Message and exit code of the first process that failed."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def check_minutes(minutes: float | None, processes: int) -> None:
    """Raise ConfigError where no plan of epochs can be made."""
    if minutes is None:
        return
    if not 0 < minutes < math.inf:
        raise ConfigError(f"--minutes must be above 0, got {minutes:g}; e.g. --minutes 10")
    if processes > 1:
        raise ConfigError(
            "--minutes must be left out with trainer.devices x trainer.num_nodes = "
            f"{processes}: one process measures; give --max-epochs"
        )


def run_workers(devices: int, num_nodes: int) -> None:
    """Run this command in a process for each device of this machine, and wait for all.

    SIGINT and SIGTERM are passed on. When one fails, the others have `SECONDS_TO_END` left, and
    `SECONDS_WITHOUT_FIRST` once the first has ended.
    Raises WorkerError, and ConfigError where other nodes are unknown.
    """
    with unwinding(), tempfile.TemporaryDirectory() as folder:
        reports = Path(folder)
        common = _environment(devices, num_nodes)
        node = int(common["NODE_RANK"])
        workers: list[subprocess.Popen[bytes]] = []
        try:
            with _passing_on(workers):
                for local in range(devices):
                    ranks = {"LOCAL_RANK": str(local), "RANK": str(node * devices + local)}
                    workers.append(_start({**common, **ranks, REPORTS: str(reports)}))
                codes = _wait(workers)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        _raise_first(codes, reports)


def check_nodes(num_nodes: int) -> None:
    """Raise ConfigError where the environment does not name the other nodes."""
    needed = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
    missing = [name for name in needed if name not in os.environ]
    if num_nodes > 1 and missing:
        raise ConfigError(
            f"trainer.num_nodes={num_nodes} needs {', '.join(needed)} on every node, "
            f"{missing[0]} is missing; set them, or start with torchrun or srun"
        )


def _environment(devices: int, num_nodes: int) -> dict[str, str]:
    check_nodes(num_nodes)
    own = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "NODE_RANK": "0"}
    threads = str(max(1, int(min(cores(), core_quota() or cores())) // devices))
    found = {"OMP_NUM_THREADS": threads, **os.environ, "WORLD_SIZE": str(devices * num_nodes)}
    return found | (own if num_nodes == 1 else {})


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _start(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *sys.orig_argv[1:]],
        env=environment,
        start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on once
        preexec_fn=end_with_parent() if sys.platform == "linux" else None,
    )


@contextmanager
def _passing_on(workers: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Pass SIGINT and SIGTERM on to the processes; one that comes twice at once, as from `timeout`,
    only once: the second could meet a process that is ending without its handlers."""
    since = -math.inf

    def send(number: int, frame: FrameType | None) -> None:
        nonlocal since
        if workers and time.monotonic() - since > SECONDS_OF_ONE_WISH:
            since = time.monotonic()
            for worker in workers:
                worker.send_signal(number)

    with handled(send):
        yield


def _wait(workers: list[subprocess.Popen[bytes]]) -> list[int | None]:
    """Wait until all have ended, or for a while after one has failed.

    Returns the exit codes at the first failure: negative for a signal, None while running.
    """
    seen: list[int | None] = []
    failed, alone = math.inf, math.inf  # when the first failure was seen, and the end of the first
    while time.monotonic() < min(failed + SECONDS_TO_END, alone + SECONDS_WITHOUT_FIRST):
        codes = [worker.poll() for worker in workers]
        if not seen and any(codes):
            seen, failed = codes, time.monotonic()
        if None not in codes:
            break
        if seen and codes[0] is not None:
            alone = min(alone, time.monotonic())
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return seen


def _raise_first(codes: list[int | None], reports: Path) -> None:
    """Raise the first error; those of the others report that a connection was lost."""
    for device, code in enumerate(codes):
        if code is not None and code < 0:  # killed: it left no report
            exit_code = 128 - code if -code in NUMBERS else 1
            message = f"the process of device {device} was ended by signal {-code}"
            raise WorkerError(message, exit_code)
    found = [json.loads(file.read_text(encoding="utf-8")) for file in reports.glob("*.json")]
    if codes and found:
        first = min(found, key=lambda report: report["time"])
        raise WorkerError(first["message"], first["exit_code"])
    for code in codes:
        if code:
            is_signal = code - 128 in NUMBERS
            raise WorkerError("interrupted" if is_signal else "a process ended early", code)


def report(message: str, exit_code: int) -> bool:
    """Write the error of this process for `run_workers`. False where that did not start it."""
    folder = os.environ.get(REPORTS)
    if folder is None:
        return False
    content = {"time": time.time(), "message": message, "exit_code": exit_code}
    with contextlib.suppress(OSError):  # the starter has ended
        write_json(Path(folder) / f"{rank()}.json", content)
    return True
