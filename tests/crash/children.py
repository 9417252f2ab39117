"""Processes that run the command line and can be killed with SIGKILL."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from recsys_moe import cli

SECONDS = 120.0
"""No run takes longer; one that does hangs, and fails the test."""


class Child:
    """A process that runs the command line: forked from this one, or started anew."""

    def __init__(
        self, words: list[str], log: Path, forked: bool, first: Callable[[], object] = bool
    ) -> None:
        """`first` is called in a forked child before the command begins."""
        self.process: subprocess.Popen[bytes] | None = None
        if forked:
            self.number = os.fork()
            if self.number == 0:
                first()
                _become(words, log)
            return
        command = [sys.executable, "-m", "recsys_moe.cli", *words]
        with log.open("ab") as stream:
            self.process = subprocess.Popen(command, stdout=stream, stderr=stream)

    @property
    def pid(self) -> int:
        return self.process.pid if self.process else self.number

    def code(self) -> int | None:
        """Exit code, None while it runs."""
        if self.process is not None:
            return self.process.poll()
        number, status = os.waitpid(self.number, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if number else None

    def wait(self, seconds: float) -> int | None:
        end = time.monotonic() + seconds
        while (code := self.code()) is None and time.monotonic() < end:
            time.sleep(0.002)
        return code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait(SECONDS)

    def kill_a_worker(self, draw: random.Random) -> bool:
        """One of the processes that this one has started; False where there is none."""
        workers = _children(self.pid)
        if not workers:
            return False
        try:
            os.kill(draw.choice(workers), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


def _children(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(number) for path in lists for number in path.read_text().split()]


def _become(words: list[str], log: Path) -> None:
    """Be the command line, in a forked child; never returns."""
    code = 1
    try:
        stream = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        sys.argv = ["recsys-moe", *words]
        cli.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.stdout.flush()
        os._exit(code)


def finish(child: Child, log: Path) -> None:
    code = child.wait(SECONDS)
    if code is None:
        child.kill()
    if code != 0:
        sys.exit(f"a run ended with {code}:\n{log.read_text()[-2000:]}")
