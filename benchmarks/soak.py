"""Minutes of /predict at 80% of the peak rate: errors, latency in windows of time, memory.

    python benchmarks/soak.py RUN [--minutes 5] [--share 0.8] [--clients 32]

Clients that each ask again as soon as they are answered find the peak. Then requests start at fixed
times, whether or not earlier ones have been answered, and a latency counts from the time at which
its request was due: a server that stands still cannot hide it. Client and server share the machine.
A table, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serving import megabytes, started

PORT = 8773
PEAK_SECONDS = 5.0
WINDOW = 30.0
"""Seconds over which latencies are summed up."""
PATIENCE = 30.0
"""Seconds after which a request counts as an error."""


@dataclass
class Window:
    """What came back from the requests that were due in a part of the time."""

    latencies: list[float] = field(default_factory=list)
    """Milliseconds, errors included."""
    errors: int = 0

    def row(self) -> dict[str, float]:
        cuts = statistics.quantiles(self.latencies, n=100) if len(self.latencies) > 1 else []
        p50, p99 = (cuts[49], cuts[98]) if cuts else (float("nan"), float("nan"))
        return {"requests": len(self.latencies), "errors": self.errors, "p50": p50, "p99": p99}


class Client:
    """One connection that stays open; after an error the next request opens another."""

    def __init__(self) -> None:
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, number: int) -> bool:
        """One pair; was the answer 200 with a body of the announced length?"""
        try:
            return await asyncio.wait_for(self._ask(number), PATIENCE)
        except (OSError, EOFError, ValueError, asyncio.TimeoutError):
            self.close()
            return False

    async def _ask(self, number: int) -> bool:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", PORT)
        reader, writer = self._streams
        body = b'{"users":[%d],"items":[%d]}' % (number % 6000 + 1, number % 3000 + 1)
        head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.partition(b"content-length:")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        return answer.split(b" ", 2)[1] == b"200"

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def peak_rate(clients: int, seconds: float) -> float:
    """Answers per second when every client asks again at once. Raises SystemExit on an error."""
    end, answered = time.perf_counter() + seconds, 0

    async def keep_asking(number: int) -> None:
        nonlocal answered
        client = Client()
        while time.perf_counter() < end:
            if not await client.ask(number):
                raise SystemExit("a request failed before the soak began")
            answered, number = answered + 1, number + clients
        client.close()

    await asyncio.gather(*(keep_asking(number) for number in range(clients)))
    return answered / seconds


async def offer(rate: float, seconds: float, clients: int) -> list[Window]:
    """`rate` requests a second, each by the next client that is free; one Window per WINDOW."""
    windows = [Window() for _ in range(int(-(-seconds // WINDOW)))]
    start, numbers = time.perf_counter(), iter(range(int(rate * seconds)))

    async def work() -> None:
        client = Client()
        for number in numbers:
            due = start + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            fine = await client.ask(number)
            window = windows[min(int((due - start) // WINDOW), len(windows) - 1)]
            window.latencies.append(1e3 * (time.perf_counter() - due))
            window.errors += not fine
        client.close()

    await asyncio.gather(*(work() for _ in range(clients)))
    return windows


async def soak(pid: int, options: argparse.Namespace) -> dict[str, Any]:
    memory = {"start": megabytes(pid)}
    peak = await peak_rate(options.clients, options.peak_seconds)
    memory["warm"] = megabytes(pid)
    seconds, rate = 60 * options.minutes, options.share * peak
    print(f"peak {peak:.0f}/s with {options.clients} clients; offering {rate:.0f}/s", flush=True)
    began = time.perf_counter()
    windows = await offer(rate, seconds, options.clients)
    took = time.perf_counter() - began
    memory["end"] = megabytes(pid)
    total = Window([ms for w in windows for ms in w.latencies], sum(w.errors for w in windows))
    return {
        "peak": peak, "offered": rate, "answered": len(total.latencies) / took, **total.row(),
        "windows": [window.row() for window in windows], "memory_mb": memory,
    }  # fmt: skip


def report(soaked: dict[str, Any], minutes: float) -> None:
    print(
        f"{'from, s':>8}" + "".join(f"{name:>10}" for name in ("requests", "errors", "p50", "p99"))
    )
    for number, row in enumerate(soaked["windows"]):
        print(f"{WINDOW * number:8.0f}" + "".join(f"{value:10.5g}" for value in row.values()))
    memory = ", ".join(f"{when} {value:.0f}" for when, value in soaked["memory_mb"].items())
    print(
        f"{soaked['requests']} requests, {soaked['answered']:.0f}/s, {soaked['errors']} errors; "
        f"ms; resident MB: {memory}"
    )
    facts = {"cpus": os.cpu_count(), "minutes": minutes}
    print(json.dumps({"benchmark": "serving soak", **facts, **soaked}))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--share", type=float, default=0.8, help="of the peak rate; below 1")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--peak-seconds", type=float, default=PEAK_SECONDS)
    options = parser.parse_args()
    if not (0 < options.minutes <= 24 * 60 and options.share > 0 and options.clients > 0):
        parser.error("--minutes must be in 0..1440, --share and --clients above 0")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = ["recsys_moe.cli", "serve", str(options.run.resolve()), "--port", str(PORT)]
        pid = started(stack, [*server, "--watch", "0"], folder, PORT)
        report(asyncio.run(soak(pid, options)), options.minutes)


if __name__ == "__main__":
    main()
