"""Jobs of small Python programs, and what becomes of their processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from recsys_moe.lab.jobs.executor import Job, Outcome

TELL = "p = pathlib.Path({!r}); p.write_text(str(os.getpid())); time.sleep(60)"


def job(folder: Path, name: str, *codes: str) -> Job:
    """A job of Python commands; each is done once its marker file is there."""
    steps = tuple(step(folder / f"{name}-{i}", code) for i, code in enumerate(codes))
    return Job(name, steps, folder / "logs" / f"{name}.log")


def step(marker: Path, code: str) -> Callable[[], list[str] | None]:
    done = f"import os, pathlib, signal, sys, time\n{code}\npathlib.Path({str(marker)!r}).touch()"
    return lambda: None if marker.exists() else [sys.executable, "-c", done]


def ends(outcome: Outcome) -> tuple[int, int]:
    """Exit code and commands that were started."""
    return outcome.exit_code, outcome.started


def wait_for(path: Path) -> str:
    """The text of a file that a process writes; long, for a busy machine."""
    deadline = time.monotonic() + 200
    while not (path.is_file() and path.read_text()):
        assert time.monotonic() < deadline, path
        time.sleep(0.02)
    return path.read_text()


def ends_soon(pid: int, seconds: float = 20) -> bool:
    """True also for a process that has ended and waits for its parent to notice."""
    deadline = time.monotonic() + seconds
    while _is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
