"""All routers with equal trials and seeds: runs what is missing, one run at a time.

    python -m research.routers --data DIR --out DIR [--hours 2]   # go on
    python -m research.routers --plan                             # what is left
    python -m research.routers --page                             # writes research/routers.md

DIR has the prepared folders `ml-100k` and `ml-1m`; with `--source`, a folder with the raw ones,
what it lacks is prepared. A row is written to research/results/routers.csv
when its run is finished; a run that was interrupted goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import fcntl
import sys
import time
from collections.abc import Sequence
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
    with (options.out / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            parser.error(f"{options.out} must have one process, another runs; wait for its end")
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
    while time.monotonic() < end and (jobs := left(options.rows)):
        job = next((job for job in jobs if is_there(job.log, options)), None)
        if job is None:
            print(f"{options.data} lacks the data of {len(jobs)} runs", file=sys.stderr)
            return
        row = finish(job, settings, options.data, options.out)
        append(row, options.rows)
        shown = " ".join(f"{name}={value:.4g}" for name, value in row.figures.items() if value)
        print(time.strftime("%H:%M"), job.folder, shown, f"left={len(jobs) - 1}", flush=True)


def is_there(log: str, options: argparse.Namespace) -> bool:
    """Whether the prepared log is; it is prepared where `--source` is given."""
    if not (options.data / log).is_dir() and options.source is not None:
        prepare(log, options.source, options.data, command)
    return (options.data / log).is_dir()


if __name__ == "__main__":
    main()
