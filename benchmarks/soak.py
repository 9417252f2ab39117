"""Minutes of /predict at 80% of the peak rate, bad requests and new models among them.

    python benchmarks/soak.py RUN [--minutes 5] [--share 0.8] [--clients 32] [--bad 0.01]
                                  [--reload 60] [--seed 0]

Clients that each ask again as soon as they are answered find the peak. Then requests start at fixed
times, whether or not earlier ones have been answered, and a latency counts from the time at which
its request was due: a server that stands still cannot hide it (`sent_p99`: from when it was sent).
Every `--reload` seconds the model's folder holds another model, and the server is told so. Exits
with 1 when a good request gets no 200, a bad one another status than its own, a reload is refused,
or memory or file handles grow. Client and server share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import common
import numpy as np
import wire
from safetensors.torch import load_file, save_file

from recsys_moe.artifact.model_folder import find_artifact
from recsys_moe.files import read_object, sha256_file, write_json

WINDOWS = 60
"""At most; each of 30 s or more, unless the soak is shorter."""
RELOAD = wire.Ask(wire.http(b"", "/reload"), 200)


class Twins:
    """Two models of other weights behind one link, which turns from the one to the other."""

    def __init__(self, run: Path, folder: Path) -> None:
        self.link, self._next = folder / "model", "b"
        for name, factor in (("a", 1.0), ("b", 1.001)):
            new = Path(shutil.copytree(find_artifact(run), folder / name))
            weights = new / "weights.safetensors"
            scaled = {key: value * factor for key, value in load_file(weights).items()}
            save_file(scaled, weights)
            manifest = read_object(new / "manifest.json")
            manifest["files"][weights.name] = sha256_file(weights)
            write_json(new / "manifest.json", manifest)
        self.link.symlink_to("a")

    def turn(self) -> None:
        fresh = self.link.with_name("next")
        fresh.symlink_to(self._next)
        os.replace(fresh, self.link)
        self._next = "a" if self._next == "b" else "b"


async def watch(pid: int, seconds: float, found: list[dict[str, float]]) -> None:
    """Memory and file handles of the server, every so often."""
    start = time.perf_counter()
    while True:
        memory, handles = common.resident("VmRSS", pid), wire.handles(pid)
        found.append({"at": time.perf_counter() - start, "mb": memory, "handles": handles})
        await asyncio.sleep(seconds)


async def renew(twins: Twins, port: int, seconds: float, found: list[dict[str, float]]) -> None:
    """Turns the link and tells the server, every so often."""
    connection = wire.Connection(port)
    while True:
        await asyncio.sleep(seconds)
        twins.turn()
        start = time.perf_counter()
        status = await connection.ask(RELOAD)
        found.append({"status": status, "seconds": time.perf_counter() - start})
        connection.close()


async def attended(
    options: argparse.Namespace, rate: float, pid: int, port: int, twins: Twins
) -> tuple[wire.Log, list[dict[str, float]], list[dict[str, float]]]:
    """The soak itself: what was answered, what was watched, how the reloads ended."""
    watched: list[dict[str, float]] = []
    reloads: list[dict[str, float]] = []
    beside = [
        asyncio.create_task(watch(pid, min(5.0, options.reload / 4), watched)),
        asyncio.create_task(renew(twins, port, options.reload, reloads)),
    ]
    due = wire.evenly(rate, 60 * options.minutes)
    requests = wire.mixed(options.bad, options.seed)
    log = await wire.offer(due, options.clients, port, requests)
    for task in beside:
        task.cancel()
    return log, watched, reloads


def soak(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    twins = Twins(options.run, folder)
    with ExitStack() as stack:
        pid, port = wire.start(stack, twins.link)
        peak = wire.peak(port, options.clients, options.peak_seconds)
        rate = options.share * peak
        print(
            f"peak {peak:.0f}/s with {options.clients} clients; offering {rate:.0f}/s", flush=True
        )
        began = time.perf_counter()
        log, watched, reloads = asyncio.run(attended(options, rate, pid, port, twins))
        took = time.perf_counter() - began
    columns = log.columns()
    return {
        "peak": peak, "offered": rate, "answered": len(columns["due"]) / took, "seconds": took,
        **summary(columns), "windows": windows(columns, options.minutes), "kinds": refused(columns),
        "reloads": len(reloads), "reloads_refused": sum(r["status"] != 200 for r in reloads),
        "reload_seconds": max((r["seconds"] for r in reloads), default=0.0), **grown(watched),
    }  # fmt: skip


def summary(log: dict[str, Any]) -> dict[str, float]:
    """Of good requests: count, errors, quantiles in ms; of bad ones: count, how many wrong."""
    fine, wrong = log["wanted"] == 200, log["wanted"] != log["got"]
    sent = float(np.percentile(log["sent_ms"][fine], 99))
    p50, p99, p999 = np.percentile(log["ms"][fine], [50, 99, 99.9]).tolist()
    return {
        "requests": int(fine.sum()), "errors": int((wrong & fine).sum()),
        "bad": int((~fine).sum()), "wrongly": int((wrong & ~fine).sum()),
        "p50": p50, "p99": p99, "p999": p999, "sent_p99": sent,
        "most": float(log["ms"][fine].max()),
    }  # fmt: skip


def windows(log: dict[str, Any], minutes: float) -> list[dict[str, float]]:
    """The same for pieces of the time."""
    width = max(60 * minutes / WINDOWS, min(30.0, 60 * minutes))
    number = ((log["due"] - log["due"].min()) // width).astype(int)
    return [
        {"from": one * width, **summary({key: log[key][number == one] for key in log})}
        for one in np.unique(number).tolist()
    ]


def refused(log: dict[str, Any]) -> dict[str, int]:
    """How many answers of each kind: wanted -> got."""
    pairs, counts = np.unique(np.stack([log["wanted"], log["got"]]), axis=1, return_counts=True)
    return {f"{w} -> {g}": int(n) for (w, g), n in zip(pairs.T.tolist(), counts, strict=True)}


def grown(watched: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Memory and file handles: at first, after warming (the second fifth), in the last fifth."""
    fifth = max(1, len(watched) // 5)
    parts = {"start": watched[:1], "warm": watched[fifth : 2 * fifth], "end": watched[-fifth:]}
    middle = {
        key: {
            when: statistics.median(one[key] for one in some or watched)
            for when, some in parts.items()
        }
        for key in ("mb", "handles")
    }
    most = {f"most_{key}": max(one[key] for one in watched) for key in middle}
    return {**middle, **most, "watched": watched[:: max(1, len(watched) // WINDOWS)]}


def laws(found: dict[str, Any], growth: float) -> list[dict[str, Any]]:
    memory, handles = found["mb"], found["handles"]
    return [
        common.target("good requests without a 200", found["errors"], 0),
        common.target("bad requests without their 4xx", found["wrongly"], 0),
        common.target("reloads refused", found["reloads_refused"], 0),
        common.target("memory, end over warm", memory["end"] / memory["warm"], growth),
        common.target("more file handles than after warming", handles["end"] - handles["warm"], 2),
    ]  # fmt: skip


def report(found: dict[str, Any], options: argparse.Namespace) -> int:
    """0 when every law holds, else 1."""
    names = ("from", "requests", "errors", "bad", "wrongly", "p50", "p99", "most", "sent_p99")
    common.table({name: f"{{{name}:.6g}}" for name in names}, found["windows"])
    memory = ", ".join(f"{when} {value:.0f}" for when, value in found["mb"].items())
    handles = ", ".join(f"{when} {value:.0f}" for when, value in found["handles"].items())
    print("{requests} good, {bad} bad requests, {answered:.0f}/s; s, ms".format(**found))
    print(f"answers: {found['kinds']}; reloads: {found['reloads']}")
    print(f"resident MB: {memory}; file handles: {handles}\n")
    kept = laws(found, options.growth)
    common.report("soak", {"minutes": options.minutes, "seed": options.seed, **found}, kept)
    return int(not all(law["met"] for law in kept))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--share", type=float, default=0.8, help="of the peak rate; below 1")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--peak-seconds", type=float, default=5.0)
    parser.add_argument("--bad", type=float, default=0.01, help="share of bad requests")
    parser.add_argument("--reload", type=float, default=60.0, help="seconds between new models")
    parser.add_argument("--growth", type=float, default=1.05, help="of memory that is no growth")
    parser.add_argument("--seed", type=int, default=0, help="of the order of bad requests")
    options = parser.parse_args(argv)
    if not (0 < options.minutes <= 24 * 60 and options.share > 0 and options.clients > 0):
        parser.error("--minutes must be in 0..1440, --share and --clients above 0")
    with tempfile.TemporaryDirectory() as folder:
        found = soak(options, Path(folder))
    if status := report(found, options):
        sys.exit(status)


if __name__ == "__main__":
    main()
