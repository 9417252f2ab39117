"""A progress bar on a terminal, nothing elsewhere; always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from recsys_moe.interrupts import unwinding


@contextmanager
def row_progress(title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A callback that takes the number of rows just done. `total`: all rows, if known."""
    if not sys.stderr.isatty():
        yield lambda rows: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (title, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with unwinding(), Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda rows: progress.advance(task, rows)
