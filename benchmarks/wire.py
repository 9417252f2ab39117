"""Requests that the load test sends, good and bad, and a client that counts their answers.

A bad request says which status of docs/how-to/serve.md it must get. Requests are bytes: a client in
Python must not cost more than the server that it measures.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from serving import served

KEY = secrets.token_hex(8)
SECONDS = 30.0
"""After which a request counts as unanswered."""
BROKEN = (OSError, EOFError, ValueError, IndexError, asyncio.TimeoutError)


class Ask(NamedTuple):
    """A request and the status that it must get."""

    raw: bytes
    status: int
    whole: bool = True
    """May another request follow on the connection?"""


class Answers(NamedTuple):
    """Of each request, in the order of the answers."""

    due: NDArray[np.float64]
    """When it was to start, s."""
    ms: NDArray[np.float64]
    """From then to its answer."""
    wanted: NDArray[np.int64]
    got: NDArray[np.int64]
    """Status; 0 for no whole answer."""


def http(
    body: bytes, path: str = "/predict", method: str = "POST", key: str = KEY, **heads: str
) -> bytes:
    named = {"Host": "127.0.0.1", "Content_Type": "application/json", **heads}
    named = {"Authorization": f"Bearer {key}", "Content_Length": str(len(body)), **named}
    heads = {name.replace("_", "-"): value for name, value in named.items() if value}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in heads.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def good(number: int) -> Ask:
    body = b'{"users":[%d],"items":[%d]}' % (number % 900 + 1, number % 700 + 1)
    return Ask(HEAD % len(body) + body, 200)


def lively(number: int) -> Ask:
    """In turn: what a user did, two requests that bring events, one of a user of whom some are
    stored. 40 users act, so that their timelines fill."""
    user, item, now = number % 160 // 4 + 1, number % 700 + 1, int(time.time())
    event = b'{"item":%d,"time":%d,"value":4' % (item, now)
    inline = b'"events":[%b}]' % event
    path, body = (
        ("/events", b'{"events":[%b,"user":%d,"id":%d}]}' % (event, user, number)),
        ("/predict", b'{"users":[%d],"items":[%d],%b}' % (number % 900 + 1, item, inline)),
        ("/recommend", b'{"users":[%d],"k":10,%b}' % (user, inline)),
        ("/predict", b'{"users":[%d],"items":[%d]}' % (user, item)),
    )[number % 4]
    return Ask(http(body, path), 200)


HEAD = http(b"").replace(b"Content-Length: 0", b"Content-Length: %d")
ONE = b'{"users":[1],"items":[1]}'
BAD = {
    "broken JSON": Ask(http(b'{"users":[1],"items":'), 400),
    "100,000 brackets": Ask(http(b"[" * 100_000), 400),
    "no HTTP": Ask(b"\x16\x03\x01\x02 hello\r\n\r\n", 400, whole=False),
    "wrong key": Ask(http(ONE, key="another"), 401),
    "unknown path": Ask(http(ONE, "/predictions"), 404),
    "wrong method": Ask(http(b"", method="GET"), 405),
    "too large": Ask(http(b"", Content_Length="2000000"), 413, whole=False),
    "another content type": Ask(http(ONE, Content_Type="text/plain"), 415),
    "another host": Ask(http(ONE, Host="elsewhere.example"), 421),
    "wrong type": Ask(http(b'{"users":[true],"items":[2]}'), 422),
    "unequal lengths": Ask(http(b'{"users":[1,2],"items":[2]}'), 422),
}
"""By name."""


def mixed(share: float, seed: int, good: Callable[[int], Ask] = good) -> Callable[[int], Ask]:
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
            status = await asyncio.wait_for(self._ask(ask.raw), SECONDS)
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
) -> Answers:
    """The answers to requests that are due at these times, each by the next client to be free."""
    found: list[tuple[float, float, int, int]] = []
    requests = enumerate(due_times)

    async def work() -> None:
        connection = Connection(port)
        for number, due in requests:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            ask = request(number)
            got = await connection.ask(ask)
            found.append((due, 1e3 * (time.perf_counter() - due), ask.status, got))
        connection.close()

    await asyncio.gather(*(work() for _ in range(clients)))
    return Answers(*(np.array(column) for column in zip(*found, strict=True)))


def start(stack: ExitStack, model: Path, *words: str) -> tuple[int, int]:
    """Process id and port of a server that wants the key."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    return served(stack, model, port, *words, RECSYS_MOE_API_KEY=KEY), port
