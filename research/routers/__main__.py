"""All routers with equal trials and seeds: runs what is missing.

    python -m research.routers --data DIR --out DIR [--hours 2]   # go on
    python -m research.routers --plan                             # what is left
    python -m research.routers --page                             # writes research/routers.md

DIR has the prepared folders `ml-100k` and `ml-1m`; with `--source`, a folder with the raw ones,
what it lacks is prepared. A row is written to research/results/routers.csv
when its run is finished; a run that was interrupted goes on from its last checkpoint.
Several processes, one per processor say, share `--out`: each takes a run that none other has.
"""

from __future__ import annotations

import argparse
import fcntl
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import yaml

from research.routers.logs import prepare
from research.routers.order import remaining
from research.routers.page import write
from research.routers.rows import RESULTS, ROWS, Job, all_rows, append, read_rows
from research.routers.run import command, finish


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="has ml-100k and ml-1m, prepared")
    parser.add_argument("--source", type=Path, help="has ml-100k and ml-1m as they are published")
    parser.add_argument("--out", type=Path, help="for runs while they train")
    parser.add_argument("--rows", type=Path, default=ROWS, help="finished runs")
    parser.add_argument("--hours", type=float, default=float("inf"), help="start none after these")
    parser.add_argument("--plan", action="store_true", help="only list what is left")
    parser.add_argument("--page", action="store_true", help="only write research/routers.md")
    options = parser.parse_args(argv)
    if options.page:
        return write(read_settings(), read_settings("routing"), options.rows)
    if options.plan:
        for job in left(options.rows):
            print(job.folder)
        return
    if options.data is None or options.out is None:
        parser.error("--data and --out must be given, except with --plan")
    options.out.mkdir(parents=True, exist_ok=True)
    run_all(options)


def read_settings(name: str = "routers") -> dict[str, dict[str, Any]]:
    """Router -> label -> sections over the shipped configuration."""
    settings = yaml.safe_load((RESULTS / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(settings, dict)
    return settings


def left(path: Path) -> list[Job]:
    settings = read_settings()
    rows = all_rows(settings, path)
    return remaining(settings, rows, read_rows(path), read_settings("routing"))


def run_all(options: argparse.Namespace) -> None:
    end = time.monotonic() + 3600 * options.hours
    settings = read_settings() | read_settings("routing")
    while time.monotonic() < end:
        with next_job(options) as job:
            if job is None:
                return
            row = finish(job, settings, options.data, options.out)
            append(row, options.rows)
        shown = " ".join(f"{name}={value:.4g}" for name, value in row.figures.items() if value)
        print(time.strftime("%H:%M"), job.folder, shown, flush=True)


@contextmanager
def next_job(options: argparse.Namespace) -> Iterator[Job | None]:
    """The first run that is left and that no other process of `--out` holds; None without one."""
    jobs, there = left(options.rows), lru_cache(None)(partial(is_there, options=options))
    for job in jobs:
        if not there(job.log):
            continue
        with (options.out / f"{job.folder}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            if job in left(options.rows):
                yield job
                return
    if lacking := sum(not there(job.log) for job in jobs):
        print(f"{options.data} lacks the data of {lacking} runs", file=sys.stderr)
    yield None


def is_there(log: str, options: argparse.Namespace) -> bool:
    """Whether the prepared log is; it is prepared where `--source` is given, by one process."""
    with (options.out / f"{log}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (options.data / log).is_dir() and options.source is not None:
            prepare(log, options.source, options.data, command)
    return (options.data / log).is_dir()


if __name__ == "__main__":
    main()
