"""What the benchmarks share: timing rivals in turn, medians and spread, tables, a line of JSON.

Import it before torch: GNU OpenMP reads GOMP_SPINCOUNT when torch loads, and the benchmarks run
with the value that `recsys-moe` sets.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recsys_moe import machine

machine.let_idle_threads_sleep()

import torch  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
WARM_UP = 5
MET = {True: "yes", False: "no"}
STATUS = Path("/proc/self/status")
Call = Callable[[], object]
Times = dict[str, list[float]]


def parser(doc: str | None, rounds: int, *, clock: bool = True) -> argparse.ArgumentParser:
    """The options of every benchmark. `doc`: of the script, whose first line is the title."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds, help="times that each rival runs")
    parser.add_argument("--quick", action="store_true", help="does it work? few rounds")
    if clock:
        parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    return parser


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    options = parser.parse_args(argv)
    if options.quick:
        options.rounds = min(options.rounds, 3)
    return options


def in_turn(
    calls: Mapping[str, Call],
    rounds: int,
    clock: str = "wall",
    warm_up: int = WARM_UP,
    *,
    settle: bool = False,
) -> Times:
    """Milliseconds of each call in each round; a round makes every call once, in their order.

    `clock`: `wall`, or `cpu` for the processor time of all threads, which other work on the
    machine disturbs less (use one thread). `on_step_end`: each call is made once more, untimed,
    right before, as in a loop of its own: else its rivals' memory is in the caches, and not its
    own.
    """
    now = CLOCKS[clock]
    times: Times = {name: [] for name in calls}
    for round_ in range(-min(warm_up, rounds), rounds):
        for name, call in calls.items():
            if settle:
                call()
            synchronise()
            start = now()
            call()
            synchronise()
            if round_ >= 0:
                times[name].append(1e3 * (now() - start))
    return times


def synchronise() -> None:
    """Wait for the GPU, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Spread(NamedTuple):
    """Of one quantity over the rounds."""

    median: float
    p10: float
    p90: float

    def __format__(self, spec: str) -> str:
        return " ".join(["{:{s}}", "({:{s}} - {:{s}})"]).format(*self, s=spec)


def spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return Spread(statistics.median(values), tenths[0], tenths[-1])


def ratio(times: Times, rival: str, base: str) -> Spread:
    """`rival` / `base`, taken within each round."""
    return spread([a / b for a, b in zip(times[rival], times[base], strict=True)])


def total(times: Times, *names: str) -> list[float]:
    """Sum over `names` of each round."""
    return [sum(parts) for parts in zip(*(times[name] for name in names), strict=True)]


def table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Print Markdown with aligned columns: of each its heading and how `str.format` fills it."""
    lines = [list(columns), *([cell.format(**row) for cell in columns.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    for line in lines:
        print("| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |")
    print()


def named(found: Mapping[Any, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows for a table from what was found per name."""
    return [{"name": name, **row} for name, row in found.items()]


def target(
    what: str, value: float, bound: float, unit: str = "", *, at_least: bool = False
) -> dict[str, Any]:
    """One line of the table of targets: `value` should be at most `bound`, or at least."""
    met, name = (value >= bound, "least") if at_least else (value <= bound, "most")
    return {"what": what, "value": value, name: bound, "unit": unit, "met": met}


def print_targets(targets: Iterable[Mapping[str, Any]]) -> None:
    columns = {"what": "{what}", "measured": "{measured}", "target": "{target}"}
    rows = [
        {**t, "met": MET[t["met"]], "measured": reached(t), "target": bound(t)} for t in targets
    ]
    table({**columns, "met": "{met}"}, rows)


def reached(target: Mapping[str, Any]) -> str:
    """What was measured, to three digits or to the whole."""
    value = target["value"]
    return f"{value:,.0f}{target['unit']}" if value >= 1000 else f"{value:.3g}{target['unit']}"


def bound(target: Mapping[str, Any]) -> str:
    """What was to be reached."""
    sign, name = (">=", "least") if "least" in target else ("<=", "most")
    return f"{sign} {target[name]:,g}{target['unit']}"


def report(name: str, numbers: dict[str, Any], targets: Sequence[dict[str, Any]] = ()) -> None:
    """Print the targets and, as the last line, everything as one JSON object."""
    if targets:
        print_targets(targets)
    print(json.dumps({"benchmark": name, **facts(), **numbers, "targets": list(targets)}))


def has_peaks(name: str) -> bool:
    """Does this system tell the peak of a process's memory? Else the benchmark is skipped."""
    if not STATUS.is_file():
        skip(name, "the peak is read from /proc, which this system does not have")
    return STATUS.is_file()


def skip(name: str, reason: str) -> None:
    """End a benchmark that this machine cannot run."""
    print(f"{name}: skipped, {reason}")
    report(name, {"skipped": reason})


def result_of(run: subprocess.CompletedProcess[str], name: str) -> dict[str, Any]:
    """The JSON object that a process printed last; exits with what it said where it failed."""
    last = run.stdout.strip().rpartition("\n")[2]
    if run.returncode != 0 or not last.startswith("{"):
        sys.exit(f"error: {name} was not measured (exit {run.returncode}):\n{run.stderr[-2000:]}")
    return dict(json.loads(last))


def measured(name: str, words: Sequence[object], **variables: str) -> dict[str, Any]:
    """`result_of` a fresh Python process of this checkout with these arguments."""
    command, env = [sys.executable, *map(str, words)], environment(**variables)
    return result_of(subprocess.run(command, capture_output=True, text=True, env=env), name)


def environment(**variables: str) -> dict[str, str]:
    """Of a process of this checkout."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return dict(os.environ) | {"PYTHONPATH": paths} | variables


def resident(key: str, pid: int | str = "self") -> float:
    """MB (10**6 bytes) of a process: now (VmRSS) or at its peak (VmHWM). Linux only."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith(f"{key}:"))
    return int(kilobytes) * 1024 / 1e6


def facts() -> dict[str, Any]:
    """Where, when and with what. Load average: of the last minute, our own work included."""
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "cpu": machine.system()["cpu"],
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "spin_count": os.environ.get("GOMP_SPINCOUNT"),
        "load_average": round(os.getloadavg()[0], 1),
    }


def commit() -> str | None:
    """With `-dirty` where files differ from it; None outside a git checkout."""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
