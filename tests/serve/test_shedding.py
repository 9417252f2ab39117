"""What is refused before it is parsed, and what is left to the parser."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import pytest
import uvicorn
from uvicorn.server import ServerState

from recsys_moe.serve import shedding
from recsys_moe.serve.http import TOO_MANY
from recsys_moe.serve.shedding import REFUSAL, Gate, is_whole

ASK = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"


def test_one_whole_request_is_known() -> None:
    assert is_whole(ASK)
    assert is_whole(ASK.replace(b"Content-Length: 2", b"content-length:2 "))


@pytest.mark.parametrize(
    "data",
    [
        ASK[:-1], ASK + b" ", ASK + ASK, ASK[:20], b"",
        ASK.replace(b"Length: 2", b"Length: 2\r\nContent-Length: 2"),
        ASK.replace(b"Length: 2", b"Length: 02"),
        ASK.replace(b"Content-Length: 2", b"X: Content-Length: 2"),
        ASK.replace(b"Host", b"Transfer-Encoding: chunked\r\nHost"),
        ASK.replace(b"Host", b"Connection: close\r\nHost"),
        ASK.replace(b"Host", b"Expect: 100-continue\r\nHost"),
        ASK.replace(b"Host", b"Upgrade: h2c\r\nHost"),
        ASK.replace(b"Host", b"X: y\nTransfer-Encoding: chunked\r\nHost"),
        ASK.replace(b"Host", b"X: y\n\nPOST /predict HTTP/1.1\r\nHost"),
        ASK.replace(b"Host", b"Transfer-Encoding : chunked\r\nHost"),
        ASK.replace(b"Length: 2", b"Length: 2\r\n 3"),
        ASK.replace(b"Length: 2", b"Length: \x0b2"),
        ASK.replace(b"Host", b"X\x00: y\r\nHost"),
        ASK.replace(b"Host: localhost", b"Host: a\r\nHost: b"),
        ASK.replace(b"Host: localhost\r\n", b""),
    ],
)  # fmt: skip
def test_all_else_is_left_to_the_parser(data: bytes) -> None:
    assert not is_whole(data)


def test_requests_of_the_same_turn_count_until_they_wait() -> None:
    async def go() -> list[bool]:
        waiting = 1
        gate, seen = Gate(3, lambda: waiting), []
        for _ in range(3):
            seen.append(gate.is_full())  # 1 + 0, 1 + 1, 1 + 2 of 3
            gate.begin()
        await asyncio.sleep(0)
        seen.append(gate.is_full())
        return seen

    assert asyncio.run(go()) == [False, False, True, False]


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written: list[bytes] = []
        self.unread = 0

    def get_write_buffer_size(self) -> int:
        return self.unread

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass


class Door:
    """Open, shut, or anything."""

    def __init__(self) -> None:
        self.full = False

    def is_full(self) -> bool:
        return self.full

    def begin(self) -> None:
        pass


async def app(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def answered(*pieces: tuple[bytes, bool], unread: int = 0) -> tuple[list[int], list[str]]:
    """The statuses on one connection that brings these bytes, and whether the service is full
    then; and the paths that were counted as refused. `unread`: bytes that the client leaves."""

    async def go() -> tuple[list[int], list[str]]:
        gate, counted, wire = Door(), list[str](), Wire()
        wire.unread = unread
        make = shedding.protocol(gate=gate, refused=counted.append, asking={"/predict"})
        config = uvicorn.Config(app, http=make, log_config=None, lifespan="off")
        config.load()
        line = make(config=config, server_state=ServerState(), app_state={})
        line.connection_made(wire)
        for data, gate.full in pieces:
            line.data_received(data)
            await asyncio.sleep(0.01)
        line.connection_lost(None)
        return statuses(b"".join(wire.written), len(pieces)), counted

    return asyncio.run(go())


def statuses(written: bytes, most: int) -> list[int]:
    """As a client's parser reads them."""
    client, found = h11.Connection(h11.CLIENT), []
    client.receive_data(written)
    for _ in range(most):
        client.send(h11.Request(method="POST", target="/", headers=[("Host", "localhost")]))
        client.send(h11.EndOfMessage())
        event = client.next_event()
        if event is h11.NEED_DATA:
            break
        assert isinstance(event, h11.Response)
        found.append(event.status_code)
        while not isinstance(client.next_event(), h11.EndOfMessage):
            pass
        client.start_next_cycle()
    assert client.trailing_data == (b"", False)
    return found


def test_while_full_requests_are_refused_and_the_connection_goes_on() -> None:
    pieces = [(ASK, False), (ASK, True), (ASK, True), (ASK, False)]
    assert answered(*pieces) == ([200, 429, 429, 200], ["/predict", "/predict"])


def test_what_the_parser_has_begun_it_ends_and_other_paths_are_its_own() -> None:
    assert answered((ASK[:30], False), (ASK[30:], True)) == ([200], [])
    health = ASK.replace(b"/predict", b"/healthz")
    assert answered((health, True), (ASK, True)) == ([200, 429], ["/predict"])


def test_who_does_not_read_is_left_to_the_parser_which_stops_reading() -> None:
    assert answered((ASK, True), unread=1) == ([200], [])


def test_the_refusal_is_the_one_of_the_routes() -> None:
    assert b"Retry-After: 1\r\n" in REFUSAL
    assert REFUSAL.endswith(b'\r\n\r\n{"error":"' + TOO_MANY.encode() + b'"}')
