"""Seconds of /predict at 3 times the peak rate: who is refused, how long others wait, and after.

    python benchmarks/overload.py RUN [--times 3] [--seconds 20] [--connections 4000] [--seed 0]

Peak as in `soak.py`. Then requests of one pair start at random times (Poisson) and wait for no
other: at half the peak, at `--times` the peak, and at half the peak again. One without a free
connection opens another; above `--connections` it counts as not sent. No connection is used again
that was idle for 5 s, for the server closes it after 10 s, and a request on its way then is lost.
Latency counts from the time at which a request was due. Exits with 1 when anything but 200, 429 and
503 comes back, when the p99 of what is accepted exceeds `--bound`, or when normal answers are not
back within `--recovery`. Client and server share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import common
import numpy as np
import wire

PHASES = ("before", "during", "after")
LOST = 0
"""The status of what never was answered."""
NOT_SENT = 1
IDLE = 5.0
"""Seconds after which a connection is not used again, as httpx does it (keepalive_expiry)."""


class Line(asyncio.Protocol):
    """One connection with at most one request on it."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self._buffer, self.due, self.sent = pool, b"", 0.0, 0.0
        self.free = 0.0
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        _, named, length = head.lower().partition(b"content-length: ")
        if named and len(body) < int(length.partition(b"\r\n")[0]):
            return
        self._buffer = b""
        self._pool.answered(self, int(head[9:12]))

    def connection_lost(self, error: Exception | None) -> None:
        self._pool.lost(self)


class Pool:
    """Sends at due times; opens connections as needed."""

    def __init__(self, port: int, most: int) -> None:
        self._port, self._most = port, most
        self._idle: list[Line] = []
        self._busy: set[Line] = set()
        self._opening = 0
        self.log = wire.Log()

    async def send(self, due_times: Iterator[float]) -> None:
        """All, and then wait until each is answered or lost, at most wire.PATIENCE."""
        loop, tasks = asyncio.get_running_loop(), set()
        for number, due in enumerate(due_times):
            while (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            if number % 64 == 0:
                await asyncio.sleep(0)  # late: answers must be read all the same
            if line := self._free():
                self._ask(line, number, due)
            elif len(self._busy) + self._opening < self._most:
                task = loop.create_task(self._open(number, due))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            else:
                self.log.add(due, due, 200, NOT_SENT)
        await self._rest()

    def _free(self) -> Line | None:
        """The connection that was used last, unless it has been idle for too long."""
        if self._idle and self._idle[-1].free < time.perf_counter() - IDLE:
            for line in self._idle:
                line.transport.abort()
            self._idle.clear()
        return self._idle.pop() if self._idle else None

    async def _rest(self) -> None:
        until = time.perf_counter() + wire.PATIENCE
        while (self._busy or self._opening) and time.perf_counter() < until:
            await asyncio.sleep(0.05)
        for line in [*self._busy, *self._idle]:
            line.transport.abort()
        await asyncio.sleep(0.1)

    async def _open(self, number: int, due: float) -> None:
        self._opening += 1
        try:
            loop = asyncio.get_running_loop()
            _, line = await loop.create_connection(lambda: Line(self), "127.0.0.1", self._port)
            self._ask(line, number, due)
        except OSError:
            self.log.add(due, due, 200, LOST)
        finally:
            self._opening -= 1

    def _ask(self, line: Line, number: int, due: float) -> None:
        line.due = due
        line.sent = time.perf_counter()
        self._busy.add(line)
        line.transport.write(wire.good(number).raw)

    def answered(self, line: Line, status: int) -> None:
        if line in self._busy:
            self._busy.remove(line)
            self.log.add(line.due, line.sent, 200, status)
            if not line.transport.is_closing():
                line.free = time.perf_counter()
                self._idle.append(line)

    def lost(self, line: Line) -> None:
        if line in self._busy:
            self._busy.remove(line)
            self.log.add(line.due, line.sent, 200, LOST)
        elif line in self._idle:
            self._idle.remove(line)


def poisson(phases: Sequence[tuple[float, float]], seed: int) -> Iterator[float]:
    """Random times, for each phase of a rate and its seconds."""
    draw, due = random.Random(seed), time.perf_counter()  # noqa: S311 - it draws times
    for rate, seconds in phases:
        end = due + seconds
        while (due := due + draw.expovariate(rate)) < end:
            yield due
        due = end


def overload(options: argparse.Namespace) -> dict[str, Any]:
    limit, half = wire.allow_handles(), options.seconds / 2
    with ExitStack() as stack:
        pid, port = wire.start(stack, options.run)
        peak = wire.peak(port, options.clients, options.peak_seconds)
        print(f"peak {peak:.0f}/s; offering {options.times * peak:.0f}/s", flush=True)
        rates = (peak / 2, options.times * peak, peak / 2)
        lengths = (half, options.seconds, options.seconds)
        memory = common.resident("VmRSS", pid)
        pool, start = Pool(port, min(options.connections, limit - 100)), time.perf_counter()
        asyncio.run(pool.send(poisson(list(zip(rates, lengths, strict=True)), options.seed)))
        after = common.resident("VmRSS", pid)
    log = pool.log.columns()
    edges = start + np.cumsum([0.0, *lengths])
    rows = []
    for number, name in enumerate(PHASES):
        rows.append({"phase": name, **phase(log, edges[number], edges[number + 1])})
        rows[-1]["offered"] = rates[number]
    calm = rows[0]["p99"]
    return {
        "peak": peak, "phases": rows,
        "mb": {"before": memory, "after": after},
        "recovery": recovery(log, edges[2], edges[3], max(2 * calm, 50.0)),
    }  # fmt: skip


def phase(log: dict[str, Any], start: float, end: float) -> dict[str, Any]:
    """Of requests that were due then: how many of each status, quantiles in ms of each kind."""
    then = (log["due"] >= start) & (log["due"] < end)
    got, ms = log["got"][then], log["ms"][then]
    accepted, refused = ms[got == 200], ms[(got == 429) | (got == 503)]
    sent = log["sent_ms"][then][got == 200]
    nothing = [float("nan")]
    p50, p99 = np.percentile(accepted if len(accepted) else nothing, [50, 99]).tolist()
    counts = {int(status): int((got == status).sum()) for status in np.unique(got)}
    return {
        "requests": int(then.sum()), "accepted": len(accepted) / (end - start),
        "p50": p50, "p99": p99, "most": float(max(accepted, default=np.nan)),
        "sent_p99": float(np.percentile(sent if len(sent) else nothing, 99)),
        "refused_p99": float(np.percentile(refused if len(refused) else nothing, 99)),
        "counts": counts,
    }  # fmt: skip


def recovery(log: dict[str, Any], start: float, end: float, calm: float) -> float:
    """Seconds after `start` until every request is 200, and 99% of each second's calm (ms)."""
    last = start
    for second in np.arange(start, end, 1.0):
        then = (log["due"] >= second) & (log["due"] < second + 1)
        if (log["got"][then] != 200).any() or np.percentile(log["ms"][then], 99) > calm:
            last = second + 1
    return float(last - start)


def laws(found: dict[str, Any], options: argparse.Namespace) -> list[dict[str, Any]]:
    counts = [row["counts"] for row in found["phases"]]
    wrong = sum(n for some in counts for got, n in some.items() if got not in (200, 429, 503, 1))
    during = found["phases"][1]
    return [
        common.target("answers but 200, 429 and 503", wrong, 0),
        common.target("p99 of what is accepted", during["p99"], options.bound, " ms"),
        common.target("normal answers again after", found["recovery"], options.recovery, " s"),
    ]


def report(found: dict[str, Any], options: argparse.Namespace) -> int:
    """0 when every law holds, else 1."""
    numbers = ("offered", "requests", "accepted", "p50", "p99", "most", "sent_p99", "refused_p99")
    columns = {"phase": "{phase}", **{name: f"{{{name}:.0f}}" for name in numbers}}
    common.table({**columns, "counts": "{counts}"}, found["phases"])
    print("requests/s, ms; sent_p99: from when the client, late itself, had sent the request\n")
    kept = laws(found, options)
    common.report("overload", {"seed": options.seed, "times": options.times, **found}, kept)
    return int(not all(law["met"] for law in kept))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--times", type=float, default=3.0, help="the peak rate")
    parser.add_argument("--seconds", type=float, default=20.0, help="of overload")
    parser.add_argument("--connections", type=int, default=4000, help="at most")
    parser.add_argument("--clients", type=int, default=32, help="that find the peak")
    parser.add_argument("--peak-seconds", type=float, default=5.0)
    parser.add_argument("--bound", type=float, default=2000.0, help="of the accepted's p99, ms")
    parser.add_argument("--recovery", type=float, default=5.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0, help="of the times of requests")
    options = parser.parse_args(argv)
    if status := report(overload(options), options):
        sys.exit(status)


if __name__ == "__main__":
    main()
