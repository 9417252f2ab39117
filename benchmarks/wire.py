"""What the load tests send to a server that wants a key, good and bad, and how they count answers.

A bad request says which status of docs/serving.md it must get. Bodies are written by hand, for a
client in Python must not cost more than the server that it measures.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import secrets
import socket
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from serving import served

KEY = secrets.token_hex(8)
PATIENCE = 30.0
"""Seconds after which a request counts as unanswered."""
BROKEN = (OSError, EOFError, ValueError, IndexError, asyncio.TimeoutError)


class Ask(NamedTuple):
    """A request and the status that it must get."""

    raw: bytes
    status: int
    whole: bool = True
    """May another request follow on the connection?"""


def http(
    body: bytes, path: str = "/predict", method: str = "POST", key: str = KEY, **heads: str
) -> bytes:
    named = {"Host": "127.0.0.1", "Content_Type": "application/json", **heads}
    named = {"Authorization": f"Bearer {key}", "Content_Length": str(len(body)), **named}
    heads = {name.replace("_", "-"): value for name, value in named.items() if value}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in heads.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def pair(number: int) -> bytes:
    return b'{"users":[%d],"items":[%d]}' % (number % 900 + 1, number % 700 + 1)


def good(number: int) -> Ask:
    body = pair(number)
    return Ask(HEAD % len(body) + body, 200)


HEAD = http(b"").replace(b"Content-Length: 0", b"Content-Length: %d")
ONE = pair(0)
MANY = b'{"users":[%b],"items":[1]}' % b",".join([b"1"] * 10_001)
BAD = {
    "broken JSON": Ask(http(b'{"users":[1],"items":'), 400),
    "no JSON": Ask(http(b"users=1&items=2"), 400),
    "100,000 brackets": Ask(http(b"[" * 100_000), 400),
    "no HTTP": Ask(b"\x16\x03\x01\x02 hello\r\n\r\n", 400, whole=False),
    "wrong key": Ask(http(ONE, key="another"), 401),
    "unknown path": Ask(http(ONE, "/predictions"), 404),
    "wrong method": Ask(http(b"", method="GET"), 405),
    "too large, announced": Ask(http(b"", Content_Length="2000000"), 413, whole=False),
    "too large, chunked": Ask(
        http(b"", Transfer_Encoding="chunked", Content_Length="")
        + b"110000\r\n" + b"1" * 0x110000 + b"\r\n0\r\n\r\n", 413, whole=False,
    ),
    "another content type": Ask(http(ONE, Content_Type="text/plain"), 415),
    "compressed": Ask(http(ONE, Content_Encoding="gzip"), 415),
    "another host": Ask(http(ONE, Host="elsewhere.example"), 421),
    "unknown field": Ask(http(b'{"users":[1],"items":[2],"colour":"red"}'), 422),
    "wrong type": Ask(http(b'{"users":[true],"items":[2]}'), 422),
    "unequal lengths": Ask(http(b'{"users":[1,2],"items":[2]}'), 422),
    "too many rows": Ask(http(MANY), 422),
    "k of text": Ask(http(b'{"users":[1],"k":"5"}', "/recommend"), 422),
}  # fmt: skip
"""By name."""


def mixed(share: float, seed: int) -> Callable[[int], Ask]:
    """Requests by number: of all, this share is bad."""
    draw, bad = random.Random(seed), list(BAD.values())  # noqa: S311 - it draws requests
    return lambda number: draw.choice(bad) if draw.random() < share else good(number)


class Connection:
    """Stays open from request to request; after an error the next one opens another."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, ask: Ask) -> int:
        """The status; 0 when no whole answer came."""
        try:
            status = await asyncio.wait_for(self._ask(ask.raw), PATIENCE)
        except BROKEN:
            status = 0
        if not (ask.whole and status):
            self.close()
        return status

    async def _ask(self, raw: bytes) -> int:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(raw)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        _, named, length = head.partition(b"content-length:")
        if named:
            await reader.readexactly(int(length.partition(b"\r\n")[0]))
        if b"connection: close" in head:
            self.close()
        return int(head.split(b" ", 2)[1])

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Log:
    """Of each request: when it was due (s), ms from then and from when it was sent, wanted, got.

    In arrays: collecting garbage among millions of objects would stop the client.
    """

    def __init__(self) -> None:
        self._due, self._ms, self._sent_ms = array("d"), array("d"), array("d")
        self._wanted, self._got = array("h"), array("h")

    def add(self, due: float, sent: float, wanted: int, got: int) -> None:
        """A request that ends now; `due` and `sent` as of time.perf_counter."""
        now = time.perf_counter()
        self._due.append(due)
        self._ms.append(1e3 * (now - due))
        self._sent_ms.append(1e3 * (now - sent))
        self._wanted.append(wanted)
        self._got.append(got)

    def columns(self) -> dict[str, Any]:
        """numpy arrays `due`, `ms`, `sent_ms`, `wanted`, `got`."""
        arrays = {"due": self._due, "ms": self._ms, "sent_ms": self._sent_ms}
        arrays |= {"wanted": self._wanted, "got": self._got}
        return {name: np.array(values) for name, values in arrays.items()}


def at_once(seconds: float) -> Iterator[float]:
    """A request is due whenever a client is free."""
    end = time.perf_counter() + seconds
    while (now := time.perf_counter()) < end:
        yield now


def evenly(rate: float, seconds: float) -> Iterator[float]:
    start = time.perf_counter()
    return (start + number / rate for number in range(int(rate * seconds)))


async def offer(
    due_times: Iterator[float], clients: int, port: int, request: Callable[[int], Ask] = good
) -> Log:
    """The answers to requests that are due at these times, each by the next client to be free."""
    log, requests = Log(), enumerate(due_times)

    async def work() -> None:
        connection = Connection(port)
        for number, due in requests:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            ask, sent = request(number), time.perf_counter()
            log.add(due, sent, ask.status, await connection.ask(ask))
        connection.close()

    await asyncio.gather(*(work() for _ in range(clients)))
    return log


def peak(port: int, clients: int, seconds: float) -> float:
    """Good requests per second that clients get answered who ask as soon as they may."""
    log = asyncio.run(offer(at_once(seconds), clients, port)).columns()
    if not (log["got"] == 200).all():
        raise SystemExit("a request failed before anything was tried")
    return float(len(log["got"]) / seconds)


def start(stack: ExitStack, model: Path, *words: str) -> tuple[int, int]:
    """Process id and port of a server that wants the key."""
    port = free_port()
    return served(stack, model, port, *words, RECSYS_MOE_API_KEY=KEY), port


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def handles(pid: int) -> int:
    """Open files and sockets of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def allow_handles() -> int:
    """Raise this process's limit of open files, which its children inherit, as far as it goes."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
