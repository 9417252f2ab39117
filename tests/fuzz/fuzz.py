"""Send made-up inputs through every target, and count those that break an invariant.

    python tests/fuzz/fuzz.py --inputs 100000 --seed 0 --state build/fuzz
    python tests/fuzz/fuzz.py --target model --number 1234

Invariants: no traceback, no other exit code or status than the documented ones, no more than 10 s
of processor time, bounded memory, the former output whole. An input follows from (seed, target,
number). The state folder keeps what was done, so that the same command goes on after an end.
Prints a line per target, and as the last line a JSON object; exit code 1 when an invariant was
broken. Linux only.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: a forked child inherits no threads
os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np

from tests.fuzz import targets, targets_words, web

TARGETS: dict[str, tuple[targets.Target, int]] = {
    "movielens": (targets.movielens, 8),
    "books": (targets.books, 6),
    "table": (targets.table, 8),
    "schema": (targets.schema, 8),
    "prepared": (targets.prepared, 6),
    "config": (targets.config, 10),
    "settings": (targets_words.settings, 6),
    "words": (targets_words.words, 8),
    "plan": (targets_words.plan, 6),
    "study": (targets_words.study, 1),
    "model": (targets.model, 9),
    "pairs": (targets.pairs, 5),
    "checkpoint": (targets.checkpoint, 5),
    "body": (web.body, 20),
    "headers": (web.headers, 12),
    "wire": (web.wire, 10),
}
"""Each with its share of the inputs."""
CHUNK = 250
SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""In memory where that is: a disk would be what is measured."""
SECONDS, WALL = 10.0, 120.0
"""Of the processor and of the clock, after which an input hangs: other work may be in the way."""
MEMORY = 4 << 30
"""Bytes of address space beyond what a process has before its first input."""


def step(target: str, seed: int, number: int, place: Path) -> None:
    """One input. Raises what breaks an invariant."""
    rng = np.random.default_rng([seed, zlib.crc32(target.encode()), number])
    TARGETS[target][0](rng, place)()


def attempt(target: str, seed: int, number: int) -> str:
    """What the input breaks, or nothing."""
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=SCRATCH) as name:
        try:
            step(target, seed, number, Path(name))
        except targets.Broken as broken:
            return str(broken)
        except BaseException as error:
            frames = traceback.format_exception(error)[-3:]
            return f"{type(error).__name__}: {''.join(frames)[-900:]}"
        finally:
            os.chdir("/")
    return ""


def work(target: str, seed: int, numbers: list[int], at: mmap.mmap, report: int) -> None:
    """The inputs, in a child; `at` says which one is worked on. Never returns."""
    if not os.environ.get("RECSYS_MOE_DEBUG"):
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(1, 2)
    had = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (had + MEMORY, had + MEMORY))
    for number in numbers:
        at[:8] = struct.pack("q", number)
        if said := attempt(target, seed, number):
            os.write(report, json.dumps([number, said]).encode() + b"\n")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    os.write(report, json.dumps(["peak", peak]).encode() + b"\n")
    os._exit(0)


def chunk(target: str, seed: int, numbers: list[int]) -> tuple[list[Any], int]:
    """What was broken, as [number, text], and the peak memory in KiB. A child that dies or hangs
    is an input that breaks an invariant; the others follow in a new one."""
    broken: list[Any] = []
    peak = 0
    while numbers:
        at, (reads, writes) = mmap.mmap(-1, 8), os.pipe()
        at[:8] = struct.pack("q", numbers[0])
        child = os.fork()
        if child == 0:
            os.close(reads)
            work(target, seed, numbers, at, writes)
        os.close(writes)
        end = watch(child, at)
        with os.fdopen(reads) as stream:
            lines = [json.loads(line) for line in stream]
        broken += [line for line in lines if line[0] != "peak"]
        peak = max([peak, *(line[1] for line in lines if line[0] == "peak")])
        if not end:
            break
        (number,) = struct.unpack("q", at[:8])
        broken.append([number, end])
        numbers = [later for later in numbers if later > number]
    return broken, peak


def watch(child: int, at: mmap.mmap) -> str:
    """How a child ended, nothing where it ended well; one that hangs is killed."""
    seen, used, since = b"", 0.0, 0.0
    while True:
        number, status = os.waitpid(child, os.WNOHANG)
        if number:
            code = os.waitstatus_to_exitcode(status)
            return f"the process ended with {code}" if code else ""
        now = _processor(child)
        if at[:8] != seen:
            seen, used, since = bytes(at[:8]), now, time.monotonic()
        if now - used > SECONDS or time.monotonic() - since > WALL:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return f"it hangs: {now - used:.0f} s of the processor"
        time.sleep(0.02)


def _processor(child: int) -> float:
    """Seconds that a process has used."""
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def chunks(inputs: int, only: list[str]) -> Iterator[tuple[str, list[int]]]:
    """Of all targets in turn, so that an early end has met each."""
    chosen = only or list(TARGETS)
    total = sum(TARGETS[name][1] for name in chosen)
    wanted = {name: -(-inputs * TARGETS[name][1] // total) for name in chosen}
    for first in range(0, max(wanted.values()), CHUNK):
        for name in chosen:
            if first < wanted[name]:
                yield name, list(range(first, min(first + CHUNK, wanted[name])))


def survey(asked: argparse.Namespace, file: Path) -> list[dict[str, Any]]:
    """All records of the state, old and new."""
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    known = {(record["target"], record["first"], record["count"]) for record in done}
    for target, numbers in chunks(asked.inputs, asked.target or []):
        if (target, numbers[0], len(numbers)) in known:
            continue
        begun = time.monotonic()
        broken, peak = chunk(target, asked.seed, numbers)
        record = {"target": target, "first": numbers[0], "count": len(numbers), "broken": broken}
        record |= {"seconds": round(time.monotonic() - begun, 1), "peak_kib": peak}
        done.append(record)
        with file.open("a") as stream:
            stream.write(json.dumps(record) + "\n")
        for number, said in broken:
            print(f"{target} --number {number}: {said}", flush=True)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="over all targets")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--number", type=int, help="of one input of --target, to see it again")
    parser.add_argument("--state", type=Path, help="folder that keeps what was done")
    asked = parser.parse_args()
    if asked.number is not None:
        broken, _ = chunk(asked.target[0], asked.seed, [asked.number])
        print(broken[0][1] if broken else "no invariant is broken")
        sys.exit(bool(broken))
    state = asked.state or Path(tempfile.mkdtemp())
    state.mkdir(parents=True, exist_ok=True)
    import recsys_moe.train.fit  # noqa: F401 - once, and not in every child

    records = survey(asked, state / f"seed-{asked.seed}.jsonl")
    if asked.state is None:
        shutil.rmtree(state)
    tell(records)


def tell(records: list[dict[str, Any]]) -> None:
    """The counts, and the exit code."""
    counts: dict[str, dict[str, float]] = {}
    for record in records:
        one = counts.setdefault(
            record["target"], {"inputs": 0, "broken": 0, "seconds": 0, "mib": 0}
        )
        one["inputs"] += record["count"]
        one["broken"] += len(record["broken"])
        one["seconds"] += record["seconds"]
        one["mib"] = max(one["mib"], record["peak_kib"] // 1024)
    for name, one in counts.items():
        print(f"{name:10} {one['inputs']:7} inputs {one['broken']:5} broken "
              f"{one['seconds']:8.1f} s {one['mib']:6} MiB")  # fmt: skip
    total = sum(int(one["inputs"]) for one in counts.values())
    broken = sum(int(one["broken"]) for one in counts.values())
    print(json.dumps({"inputs": total, "broken": broken, "targets": counts}))
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
