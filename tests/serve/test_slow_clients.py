"""Clients that send byte by byte, or never read: the service drops them and goes on."""

from __future__ import annotations

import http.client
import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from recsys_moe.serve.patience import Patience, allow_connections
from tests.serve.conftest import KEY
from tests.serve.test_server import PAIR, Running, running

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")
SECONDS = 1.0
HEAD = f"POST /recommend HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Running]:
    with running(run, "--watch", "0", "--timeout", SECONDS) as server:
        yield server


def connected(server: Running) -> socket.socket:
    url = server.client.base_url
    return socket.create_connection((url.host, url.port or 80), timeout=10)


def seconds_until_dropped(connection: socket.socket, sent: bytes) -> float:
    """While these bytes are sent, ten in a second; at most 10 s."""
    begun = time.monotonic()
    for number in range(100):
        if select.select([connection], [], [], 0.1)[0]:
            break
        try:
            connection.sendall(sent[number : number + 1])
        except OSError:
            break
    return time.monotonic() - begun


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", HEAD.encode()], ids=["nothing", "a head byte by byte"])
def test_who_sends_no_whole_head_is_dropped_after_the_time_out(
    server: Running, sent: bytes
) -> None:
    with closing(connected(server)) as connection:
        assert SECONDS <= seconds_until_dropped(connection, sent) < 3 * SECONDS
    assert server.client.post("/predict", json=PAIR).status_code == 200


def test_who_goes_on_with_a_body_after_its_refusal_is_dropped(server: Running) -> None:
    with closing(connected(server)) as connection:
        head = HEAD.replace("POST /recommend", "GET /nowhere") + "Content-Length: 1000\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 404")
        assert seconds_until_dropped(connection, b" " * 1000) < 3 * SECONDS


def test_who_never_reads_its_answers_is_dropped_and_others_are_answered(server: Running) -> None:
    ask = f"{HEAD.replace('POST /recommend', 'GET /openapi.json')}\r\n".encode()
    with closing(connected(server)) as connection:
        connection.setblocking(False)
        begun = time.monotonic()
        while time.monotonic() - begun < 10:
            try:  # what the kernel takes; the service stops reading when its answers pile up
                connection.send(ask * 100)
            except BlockingIOError:
                time.sleep(0.05)
            except OSError:
                break  # reset
            assert server.client.post("/predict", json=PAIR).status_code == 200
        assert SECONDS <= time.monotonic() - begun < 9


@pytest.mark.slow
def test_a_connection_that_is_used_again_and_again_stays(server: Running) -> None:
    with httpx.Client(base_url=server.client.base_url) as client:
        sockets = set()
        for _ in range(12):  # 12 x 0.2 s: more than twice the time-out
            with client.stream("GET", "/healthz") as answer:
                sockets.add(id(answer.extensions["network_stream"]))
                answer.read()
            time.sleep(0.2)
    assert len(sockets) == 1


@pytest.mark.slow
def test_a_connection_is_kept_idle_for_the_time_out_and_then_ends_without_a_reset(
    run: Path,
) -> None:
    with running(run, "--watch", "0", "--timeout", 7) as server:
        one = http.client.HTTPConnection("localhost", server.client.base_url.port, timeout=20)
        one.sock = sock = connected(server)
        for idle in (6, 0):  # uvicorn's own 5 s are less than what pools of proxies keep
            one.request("GET", "/healthz")
            assert one.getresponse().read() and one.sock is sock
            time.sleep(idle)
        begun = time.monotonic()
        assert sock.recv(1) == b""
        assert 6 <= time.monotonic() - begun < 10
        one.close()


class Transport:
    waiting, aborted = 0, False

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def abort(self) -> None:
        self.aborted = True


def test_only_what_the_client_alone_can_move_counts() -> None:
    class Connection(SimpleNamespace):
        __hash__ = object.__hash__  # type: ignore[assignment]

    def held(complete: bool | None, waiting: int = 0) -> Any:
        cycle = None if complete is None else SimpleNamespace(response_complete=complete)
        transport = Transport()
        transport.waiting = waiting
        return Connection(cycle=cycle, transport=transport)

    silent, done, asked, unread = held(None), held(True), held(False), held(False, 10)
    patience, everybody = Patience(5), [silent, done, asked, unread]
    patience.look(everybody, now=100)
    patience.look(everybody, now=104.9)
    assert not any(one.transport.aborted for one in everybody)
    done.cycle = SimpleNamespace(response_complete=True)  # another request has been answered
    patience.look(everybody, now=105)
    assert [one.transport.aborted for one in everybody] == [True, False, False, True]


def test_the_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    try:
        allow_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
