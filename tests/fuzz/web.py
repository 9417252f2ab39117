"""The targets of the service: bodies and headers through its application, raw bytes at its
socket."""

from __future__ import annotations

import asyncio
import functools
import json
import re
import socket
import time
from pathlib import Path
from typing import Any

from tests.fuzz.mutations import TOKENS, Rng, json_text, mutated
from tests.fuzz.targets import KEPT, Broken, Step
from tests.serve.conftest import KEY, Caller, Threaded

MODEL = KEPT / "features" / "run"
NEW = {"features": {"age": 30, "genres": ["Comedy"]}, "history": [1, [2, 4.0]]}
BODIES: dict[str, dict[str, Any]] = {
    "/predict": {"users": [1, NEW], "items": [2, 3]},
    "/recommend": {"users": [1, NEW], "k": 3, "exclude_seen": True, "where": ["title=a"]},
    "/explain": {"users": [1], "items": [2]},
    "/similar": {"item": 2, "k": 3},
    "/seen": {"user": 1, "k": 2},
}
PATHS = (*BODIES, "/model", "/metrics", "/healthz", "/readyz", "/", "/openapi.json", "/reload")


@functools.cache
def caller() -> Caller:
    return Caller(MODEL)


def body(rng: Rng, place: Path) -> Step:
    """A body for a path that takes one."""
    path = tuple(BODIES)[int(rng.integers(len(BODIES)))]
    content = json_text(rng, json.dumps(BODIES[path]).encode())
    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    return functools.partial(ask, "POST", path, headers, content)


def headers(rng: Rng, place: Path) -> Step:
    """A path, a method and headers of all kinds."""
    path = PATHS[int(rng.integers(len(PATHS)))]
    content = json.dumps(BODIES.get(path, {})).encode()
    names = (b"content-type", b"content-length", b"authorization", b"host", b"accept", b"range")
    given = [(b"content-type", b"application/json")]
    for _ in range(int(rng.integers(1, 4))):
        name = (*names, b"content-encoding", b"cookie")[int(rng.integers(8))]
        value = mutated(rng, (b"application/json", b"1", b"Bearer x")[int(rng.integers(3))])
        given.append((name, value[:60_000]))
    method = ("POST", "GET", "HEAD", "PUT", "OPTIONS", "DELETE", "\u0130")[int(rng.integers(7))]
    path = mutated(rng, path.encode()).decode("latin-1") if rng.random() < 0.4 else path
    return functools.partial(ask, method, path, given, content)


def ask(method: str, path: str, given: list[tuple[bytes, bytes]], content: bytes) -> None:
    """Raises Broken for a fault of the service, or an error of another shape."""
    status, answer = asyncio.run(_exchange(method, path, given, content))
    if status >= 500:
        raise Broken(f"{method} {path[:80]!r}: {status} {answer[:300]!r}")
    if status >= 400 and method != "HEAD" and list(json.loads(answer)) != ["error"]:
        raise Broken(f"{status} in another shape: {answer[:300]!r}")
    if b"formats/0.1" in answer or b"Traceback" in answer:
        raise Broken(f"a path or a trace of the machine: {answer[:300]!r}")


async def _exchange(
    method: str, path: str, given: list[tuple[bytes, bytes]], content: bytes
) -> tuple[int, bytes]:
    """Status and body of one request, straight through ASGI."""
    scope = {
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http"},
        **{"method": method, "path": path, "raw_path": path.encode("utf-8", "replace")},
        **{"query_string": b"", "root_path": "", "headers": given},
        **{"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000)},
    }
    sent: list[dict[str, Any]] = []
    waiting = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return waiting.pop() if waiting else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await caller().app(scope, receive, send)  # type: ignore[arg-type]
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


@functools.cache
def server() -> Threaded:
    return Threaded(MODEL)


def request(path: str, how: int) -> bytes:
    """One whole request: with a length, in chunks, or as an old client would send it."""
    content = json.dumps(BODIES.get(path, {})).encode()
    method = "POST" if path in BODIES else "GET"
    version = "1.0" if how == 2 else "1.1"
    head = f"{method} {path} HTTP/{version}\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    head += "Content-Type: application/json\r\n"
    if how == 1:
        half = len(content) // 2
        chunks = [content[:half], content[half:]]
        text = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks if c) + b"0\r\n\r\n"
        return f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + text
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


HTTP = (
    *(b"\r\n\r\n", b"\n\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n"),
    *(b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n", b"0\r\n\r\n"),
    *(b"Expect: 100-continue\r\n", b"Connection: close\r\n", b"Upgrade: websocket\r\n"),
    *(b"ffffffffffffffff\r\n", b"Host: a\r\n", b"GET / HTTP/1.1\r\n\r\n", b"HTTP/2.0", b" "),
    *(b"x: " + b"y" * 70_000 + b"\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", *TOKENS),
)


def wire(rng: Rng, place: Path) -> Step:
    """One to three requests in one stream, changed anywhere, sent in one to four pieces."""
    parts = [
        request(PATHS[int(rng.integers(len(PATHS)))], int(rng.integers(3)))
        for _ in range(int(rng.integers(1, 4)))
    ]
    stream = mutated(rng, b"".join(parts), HTTP)
    cuts = sorted(int(rng.integers(len(stream) + 1)) for _ in range(int(rng.integers(4))))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    pause = 0.01 if rng.random() < 0.1 else 0.0
    return functools.partial(speak, pieces, pause)


def speak(pieces: list[bytes], pause: float) -> None:
    """Raises Broken unless each answer is one, and a good request is answered afterwards."""
    address = server().listener.getsockname()
    with socket.create_connection(address[:2], timeout=10) as stream:
        answer = _said(stream, pieces, pause)
    statuses = [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]
    if any(status >= 500 for status in statuses):
        raise Broken(f"statuses {statuses}: {answer[-300:]!r}")
    if server().client.get("/readyz").status_code != 200:
        raise Broken("the service is not ready any more")


def _said(stream: socket.socket, pieces: list[bytes], pause: float) -> bytes:
    """All that is answered until the service, or the client that has said all, ends it."""
    answer = b""
    try:
        for piece in pieces:
            stream.sendall(piece)
            time.sleep(pause)
        stream.shutdown(socket.SHUT_WR)
        while part := stream.recv(1 << 16):
            answer += part
    except TimeoutError:
        raise Broken(f"no end within 10 s after {answer[-300:]!r}") from None
    except OSError:  # it may hang up while we still speak
        pass
    return answer
