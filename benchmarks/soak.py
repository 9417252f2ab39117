"""Minutes of /predict at a share of the peak rate, with bad requests and new models among them.

    python benchmarks/soak.py RUN [--minutes 5] [--share 0.8] [--clients 32] [--seed 0] [--events]

Clients that each ask again as soon as they are answered find the peak. Then requests start at fixed
times, whether or not earlier ones have been answered, and a latency counts from the time at which
its request was due. Every `--reload` seconds the model's folder holds another model. Exits with 1
when a request gets another status than its own, a reload is refused, or memory or file handles
grow. Client and server share the machine. `--events` mixes /events, requests that bring events and
/recommend, for a model of sequences; its events go to a file.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import common
import numpy as np
import wire
from safetensors.torch import load_file, save_file

from recsys_moe.artifact.manifest import find_artifact
from recsys_moe.files import read_object, sha256_file, write_json

RELOAD = wire.Ask(wire.http(b"", "/reload"), 200)


def twins(run: Path, folder: Path) -> None:
    """Two models of other weights, `a` and `b`."""
    for name, factor in (("a", 1.0), ("b", 1.001)):
        new = Path(shutil.copytree(find_artifact(run), folder / name))
        weights = new / "weights.safetensors"
        save_file({key: value * factor for key, value in load_file(weights).items()}, weights)
        manifest = read_object(new / "manifest.json")
        manifest["files"][weights.name] = sha256_file(weights)
        write_json(new / "manifest.json", manifest)


def turn(link: Path, name: str) -> None:
    """Let the link, which the server reads, lead to the model of this name."""
    fresh = link.with_name("next")
    fresh.symlink_to(name)
    os.replace(fresh, link)


async def watch(pid: int, seconds: float, found: list[tuple[float, int]]) -> None:
    """Resident MB and file handles of the server, every so often."""
    while True:
        found.append((common.resident("VmRSS", pid), len(os.listdir(f"/proc/{pid}/fd"))))
        await asyncio.sleep(seconds)


async def renew(link: Path, port: int, seconds: float, found: list[int]) -> None:
    """Replace the model and reload it every so often; the statuses of the reloads."""
    for name in itertools.cycle("ba"):
        await asyncio.sleep(seconds)
        turn(link, name)
        connection = wire.Connection(port)
        found.append(await connection.ask(RELOAD))
        connection.close()


async def attended(
    options: argparse.Namespace, rate: float, pid: int, port: int, link: Path
) -> dict[str, Any]:
    """The soak itself."""
    watched: list[tuple[float, int]] = []
    reloads: list[int] = []
    beside = [
        asyncio.create_task(watch(pid, min(5.0, options.reload / 4), watched)),
        asyncio.create_task(renew(link, port, options.reload, reloads)),
    ]
    due = wire.evenly(rate, 60 * options.minutes)
    requests = wire.mixed(options.bad, options.seed, kind(options))
    answers = await wire.offer(due, options.clients, port, requests)
    for task in beside:
        task.cancel()
    refused = sum(status != 200 for status in reloads)
    grown = growth(watched)
    return {**summary(answers), "reloads": len(reloads), "reloads_refused": refused, **grown}


def kind(options: argparse.Namespace) -> Callable[[int], wire.Ask]:
    """Good requests by number."""
    return wire.lively if options.events else wire.good


def summary(answers: wire.Answers) -> dict[str, float]:
    """Of good requests: count, errors, quantiles in ms; of bad ones: count, how many wrong."""
    fine, wrong = answers.wanted == 200, answers.wanted != answers.got
    p50, p99, p999 = np.percentile(answers.ms[fine], [50, 99, 99.9]).tolist()
    return {
        "requests": int(fine.sum()), "errors": int((wrong & fine).sum()),
        "bad": int((~fine).sum()), "wrongly": int((wrong & ~fine).sum()),
        "p50": p50, "p99": p99, "p999": p999, "most": float(answers.ms[fine].max()),
    }  # fmt: skip


def growth(watched: Sequence[tuple[float, int]]) -> dict[str, float]:
    """Medians of the last fifth against those after warming, the second fifth."""
    fifth = max(1, len(watched) // 5)
    warm = np.median(watched[fifth : 2 * fifth] or watched, axis=0)
    end = np.median(watched[-fifth:], axis=0)
    found = {"mb": end[0], "growth": end[0] / warm[0], "more_handles": end[1] - warm[1]}
    return {name: float(value) for name, value in found.items()}


def soak(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    twins(options.run, folder)
    link = folder / "model"
    turn(link, "a")
    with ExitStack() as stack:
        words = ("--events", str(folder / "events.jsonl")) if options.events else ()
        pid, port = wire.start(stack, link, *words)
        at_once, asked = wire.at_once(options.peak_seconds), kind(options)
        first = asyncio.run(wire.offer(at_once, options.clients, port, asked))
        peak = len(first.got) / options.peak_seconds
        print(f"peak {peak:.0f}/s; offering {options.share * peak:.0f}/s", flush=True)
        began = time.perf_counter()
        found = asyncio.run(attended(options, options.share * peak, pid, port, link))
        return {"peak": peak, "seconds": time.perf_counter() - began, **found}


def targets(found: dict[str, Any], most: float) -> list[dict[str, Any]]:
    return [
        common.target("good requests without a 200", found["errors"], 0),
        common.target("bad requests without their 4xx", found["wrongly"], 0),
        common.target("reloads refused", found["reloads_refused"], 0),
        common.target("memory, end over warm", found["growth"], most),
        common.target("more file handles than after warming", found["more_handles"], 2),
    ]  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--share", type=float, default=0.8, help="of the peak rate; below 1")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--peak-seconds", type=float, default=5.0)
    parser.add_argument("--bad", type=float, default=0.01, help="share of bad requests")
    parser.add_argument("--events", action="store_true", help="events among the requests")
    parser.add_argument("--reload", type=float, default=60.0, help="seconds between new models")
    parser.add_argument("--growth", type=float, default=1.05, help="of memory that is no growth")
    parser.add_argument("--seed", type=int, default=0, help="of the order of bad requests")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        found = soak(options, Path(folder))
    common.table({name: f"{{{name}:.6g}}" for name in found}, [found])
    kept = targets(found, options.growth)
    common.report("soak", {"minutes": options.minutes, "seed": options.seed, **found}, kept)
    sys.exit(int(not all(target["met"] for target in kept)))


if __name__ == "__main__":
    main()
