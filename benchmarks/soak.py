"""Minutes of /predict at 80% of the peak rate: errors, latency in windows of time, memory.

    python benchmarks/soak.py RUN [--minutes 5] [--share 0.8] [--clients 32]

Clients that each ask again as soon as they are answered find the peak. Then requests start at fixed
times, whether or not earlier ones have been answered, and a latency counts from the time at which
its request was due: a server that stands still cannot hide it. Client and server share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import common
import numpy as np
from serving import served

PORT = 8773
WINDOW = 30.0
"""Seconds over which latencies are summed up."""
PATIENCE = 30.0
"""Seconds after which a request counts as an error."""


class Answer(NamedTuple):
    due: float
    """Second, of time.perf_counter, at which its request was to start."""
    ms: float
    """From then on, of errors too."""
    fine: bool


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


def at_once(seconds: float) -> Iterator[float]:
    """A request is due whenever a client is free."""
    end = time.perf_counter() + seconds
    while (now := time.perf_counter()) < end:
        yield now


def evenly(rate: float, seconds: float) -> Iterator[float]:
    start = time.perf_counter()
    return (start + number / rate for number in range(int(rate * seconds)))


async def offer(due_times: Iterator[float], clients: int) -> list[Answer]:
    """The answers to requests that are due at these times, each by the next client to be free."""
    answers: list[Answer] = []
    requests = enumerate(due_times)

    async def work() -> None:
        client = Client()
        for number, due in requests:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            fine = await client.ask(number)
            answers.append(Answer(due, 1e3 * (time.perf_counter() - due), fine))
        client.close()

    await asyncio.gather(*(work() for _ in range(clients)))
    return sorted(answers)


def summary(answers: Sequence[Answer]) -> dict[str, float]:
    p50, p99 = np.percentile([answer.ms for answer in answers], [50, 99]).tolist()
    errors = sum(not answer.fine for answer in answers)
    return {"requests": len(answers), "errors": errors, "p50": p50, "p99": p99}


def soak(pid: int, options: argparse.Namespace) -> dict[str, Any]:
    memory = {"start": common.resident("VmRSS", pid)}
    warm = asyncio.run(offer(at_once(options.peak_seconds), options.clients))
    if not all(answer.fine for answer in warm):
        raise SystemExit("a request failed before the soak began")
    memory["warm"] = common.resident("VmRSS", pid)
    peak = len(warm) / options.peak_seconds
    rate = options.share * peak
    print(f"peak {peak:.0f}/s with {options.clients} clients; offering {rate:.0f}/s", flush=True)
    began = time.perf_counter()
    answers = asyncio.run(offer(evenly(rate, 60 * options.minutes), options.clients))
    took = time.perf_counter() - began
    memory["end"] = common.resident("VmRSS", pid)
    windows = groupby(answers, lambda answer: (answer.due - answers[0].due) // WINDOW * WINDOW)
    return {
        "peak": peak, "offered": rate, "answered": len(answers) / took, **summary(answers),
        "windows": [{"from": start, **summary(list(some))} for start, some in windows],
        "memory_mb": memory,
    }  # fmt: skip


def report(soaked: dict[str, Any], minutes: float) -> None:
    names = ("from", "requests", "errors", "p50", "p99")
    common.table({name: f"{{{name}:.5g}}" for name in names}, soaked["windows"])
    memory = ", ".join(f"{when} {value:.0f}" for when, value in soaked["memory_mb"].items())
    print(
        "{requests} requests, {answered:.0f}/s, {errors} errors; s, ms; ".format(**soaked), end=""
    )
    print(f"resident MB: {memory}\n")
    common.report("soak", {"minutes": minutes, **soaked})


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--share", type=float, default=0.8, help="of the peak rate; below 1")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--peak-seconds", type=float, default=5.0)
    options = parser.parse_args(argv)
    if not (0 < options.minutes <= 24 * 60 and options.share > 0 and options.clients > 0):
        parser.error("--minutes must be in 0..1440, --share and --clients above 0")
    with ExitStack() as stack:
        report(soak(served(stack, options.run, PORT), options), options.minutes)


if __name__ == "__main__":
    main()
