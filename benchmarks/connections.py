"""Thousands of idle connections, and clients that send or read too slowly, beside normal requests.

    python benchmarks/connections.py RUN [--idle 10000] [--slow 200] [--seconds 5] [--timeout 10]

While idle connections are held for `--seconds`, and then while `--slow` clients of each kind try,
normal clients ask as soon as they are answered. Slow kinds: a head byte by byte, a body byte by
byte, and (a tenth as many) requests whose answers nobody reads. Exits with 1 when a normal request
gets no 200, when an idle connection is not taken, when one that sends slowly is still there two
seconds (and a fifth) after `--timeout`, or one that never reads after three times that. Limits of
open files are raised as far as the system allows; what they do not allow is said. Client and server
share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import time
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import common
import numpy as np
import wire

ABREAST = 200
"""Connections that are being opened at a time."""
SPARE = 200
"""Open files that a process needs for all else."""
LONG = "120"
"""Seconds of `--timeout` while connections are idle, for it drops them too."""
UNREAD = wire.http(b"", "/openapi.json", "GET")
BYTEWISE = ("head byte by byte", "body byte by byte")
SLOW = (*BYTEWISE, "answers unread")
"""What kinds of slow clients there are."""
CLIENTS = 8
"""That ask normally."""
UNREAD_SHARE = 10
"""A client of so many: each makes the server write megabytes, to fill the system's buffers."""


async def held(port: int, count: int, seconds: float, pid: int) -> dict[str, Any]:
    """Open so many connections, send nothing, and see who is still there after these seconds."""
    gate, lines = asyncio.Semaphore(ABREAST), list[asyncio.StreamWriter]()

    async def opened() -> None:
        async with gate:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            lines.append(writer)

    start = time.perf_counter()
    done = await asyncio.gather(*(opened() for _ in range(count)), return_exceptions=True)
    opening = time.perf_counter() - start
    await asyncio.sleep(seconds)  # a system takes connections before the server has accepted them
    handles, memory = wire.handles(pid), common.resident("VmRSS", pid)
    for writer in lines:
        writer.close()
    refused = sum(isinstance(one, BaseException) for one in done)
    return {"refused": refused, "opening": opening, "handles": handles, "mb": memory}


async def byte_by_byte(port: int, raw: bytes, whole: bytes, until: float) -> float:
    """Send `raw` at once and `whole` bytewise, ten in a second, until dropped; seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    start = time.perf_counter()
    writer.write(raw)
    ended = asyncio.ensure_future(reader.read())
    for number in range(10**6):
        done, _ = await asyncio.wait([ended], timeout=0.1)
        if done or time.perf_counter() > until:
            break
        writer.write(whole[number : number + 1] or b" ")
    took = time.perf_counter() - start
    ended.cancel()
    await asyncio.gather(ended, return_exceptions=True)
    writer.transport.abort()
    return took


async def unread(port: int, until: float) -> float:
    """Ask again and again without reading; seconds until dropped."""
    loop, line = asyncio.get_running_loop(), socket.socket()
    line.setblocking(False)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    start = time.perf_counter()
    try:
        await loop.sock_connect(line, ("127.0.0.1", port))
        while time.perf_counter() < until:
            with suppress(BlockingIOError):
                line.send(UNREAD * 20)
            await asyncio.sleep(0.1)
    except OSError:
        pass  # reset
    finally:
        line.close()
    return min(time.perf_counter(), until) - start


def slow(kind: str, port: int, until: float) -> Coroutine[Any, Any, float]:
    if kind == "answers unread":
        return unread(port, until)
    body = wire.HEAD % 1000
    raw, rest = (b"", body) if kind.startswith("head") else (body, b" " * 1000)
    return byte_by_byte(port, raw, rest, until)


async def tried(kind: str, port: int, options: argparse.Namespace) -> dict[str, Any]:
    """How long each slow client of a kind was endured."""
    until = time.perf_counter() + 3 * options.timeout + 5
    count = options.slow if kind in BYTEWISE else max(1, options.slow // UNREAD_SHARE)
    took = await asyncio.gather(*(slow(kind, port, until) for _ in range(count)))
    endless = 0 if time.perf_counter() < until else sum(one == max(took) for one in took)
    return {"clients": count, "dropped_after": max(took), "endless": endless}


async def beside(
    work: Coroutine[Any, Any, dict[str, Any]], port: int, clients: int
) -> dict[str, Any]:
    """What `work` found, and how normal requests went meanwhile."""
    task, log = asyncio.ensure_future(work), wire.Log()

    async def normal(number: int) -> None:
        connection = wire.Connection(port)
        while not task.done():
            due = time.perf_counter()
            log.add(due, due, 200, await connection.ask(wire.good(number)))
            await asyncio.sleep(0.01)
        connection.close()

    await asyncio.gather(*(normal(number) for number in range(clients)))
    columns = log.columns()
    p50, p99 = np.percentile(columns["ms"], [50, 99]).tolist()
    errors = int((columns["got"] != 200).sum())
    return {"requests": len(columns["got"]), "errors": errors, "p50": p50, "p99": p99, **await task}


def measured(options: argparse.Namespace) -> dict[str, Any]:
    limit = wire.allow_handles()
    if options.idle > limit - SPARE:
        print(f"{limit} open files allowed: {limit - SPARE} idle connections, not {options.idle}")
    idle = min(options.idle, limit - SPARE)
    calm = asyncio.sleep(2, {"clients": 0})
    with ExitStack() as stack:
        pid, port = wire.start(stack, options.run, "--timeout", LONG)
        rows = [row("nothing", calm, pid, port)]
        rows.append(row("idle", held(port, idle, options.seconds, pid), pid, port))
    with ExitStack() as stack:
        pid, port = wire.start(stack, options.run, "--timeout", f"{options.timeout:g}")
        before = wire.handles(pid)
        rows += [row(kind, tried(kind, port, options), pid, port) for kind in SLOW]
        time.sleep(1)
        left = wire.handles(pid) - before
    return {"idle": idle, "limit": limit, "rows": rows, "left": left}


def row(
    kind: str, work: Coroutine[Any, Any, dict[str, Any]], pid: int, port: int
) -> dict[str, Any]:
    """What `work` found, how normal requests went beside it, and the server's memory."""
    time.sleep(1)  # what is closing closes
    before = common.resident("VmRSS", pid)
    found = asyncio.run(beside(work, port, CLIENTS))
    after = common.resident("VmRSS", pid)
    return {"kind": kind, "mb_before": before, "mb": after, **found, "mb_after": after}


def laws(found: dict[str, Any], options: argparse.Namespace) -> list[dict[str, Any]]:
    rows = {row["kind"]: row for row in found["rows"]}
    late = max(rows[kind]["dropped_after"] for kind in BYTEWISE)
    return [
        common.target("normal requests without a 200", sum(r["errors"] for r in rows.values()), 0),
        common.target("idle connections that were refused", rows["idle"]["refused"], 0),
        common.target("file handles then", rows["idle"]["handles"], found["idle"], at_least=True),
        common.target("who sends slowly was endured", late, 1.2 * options.timeout + 2, " s"),
        common.target("who never reads was never dropped", rows[SLOW[-1]]["endless"], 0),
        common.target("file handles left", found["left"], 2),
    ]


def report(found: dict[str, Any], options: argparse.Namespace) -> int:
    """0 when every law holds, else 1."""
    kinds = ("requests", "errors", "p50", "p99", "mb_before", "mb", "mb_after", "dropped_after")
    columns = {"kind": "{kind}", **{name: f"{{{name}:.0f}}" for name in kinds}}
    common.table(columns, [{"dropped_after": 0, **row} for row in found["rows"]])
    kept = laws(found, options)
    common.report("connections", {"timeout": options.timeout, **found}, kept)
    return int(not all(law["met"] for law in kept))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--idle", type=int, default=10_000, help="connections")
    parser.add_argument("--slow", type=int, default=200, help="clients of each slow kind")
    parser.add_argument("--seconds", type=float, default=5.0, help="that they are idle")
    parser.add_argument("--timeout", type=float, default=10.0, help="of the server")
    options = parser.parse_args(argv)
    if status := report(measured(options), options):
        sys.exit(status)


if __name__ == "__main__":
    main()
