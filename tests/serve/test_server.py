"""`recsys-moe serve` as a user runs it: the address, signals, exit codes, what is imported."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from recsys_moe.errors import ConfigError, DataError, RunError
from recsys_moe.serve.limits import Limits
from recsys_moe.serve.server import Server, Settings, _listener, read_key, serve
from tests.serve.conftest import KEY, Caller, retrained, sealed

PAIR = {"users": [1], "items": [2]}
MAIN = """
import atexit, sys
names = ("lightning", "pytorch_lightning", "matplotlib")
atexit.register(lambda: print("loaded", [n for n in names if n in sys.modules], file=sys.stderr))
from recsys_moe.cli import main
main()
"""
pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")


class Running:
    """A server process; `lines` is what it has written to stderr."""

    def __init__(self, *args: object) -> None:
        root = Path(__file__).parents[2]
        env = {**os.environ, "PYTHONPATH": str(root), "RECSYS_MOE_API_KEY": KEY}
        command = [sys.executable, "-c", MAIN, "serve", *map(str, args), "--port", "0"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
        self.lines: list[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        address = self.wait_for(r"on (http://127\.0\.0\.1:\d+)$")
        self.client = httpx.Client(base_url=address, headers={"Authorization": f"Bearer {KEY}"})

    def _read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.lines.append(line.strip())

    def wait_for(self, pattern: str, seconds: float = 60) -> str:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for line in list(self.lines):
                if match := re.search(pattern, line):
                    return match.group(match.re.groups)
            time.sleep(0.02)
        raise AssertionError(f"no {pattern!r} in {self.lines}")


@contextmanager
def running(*args: object) -> Iterator[Running]:
    server = Running(*args)
    try:
        yield server
    finally:
        server.client.close()
        server.process.kill()
        server.process.wait()
        server.reader.join()
        server.process.stderr.close()  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_server_lives_and_ends_as_promised(folder: Path) -> None:
    with running(folder, "--watch", "0", "--allow-host", "scores.example") as server:
        assert server.wait_for("(loading torch and the model)")
        assert server.client.get("/readyz").json() == {"status": "ready"}
        assert server.client.post("/predict", json=PAIR).status_code == 200
        head = server.client.head("/healthz")  # what some load balancers ask
        assert (head.status_code, head.content) == (200, b"")
        assert httpx.post(f"{server.client.base_url}/predict", json=PAIR).status_code == 401
        rebound = {"Host": "elsewhere.example"}
        assert server.client.get("/model", headers=rebound).status_code == 421
        named = {"Host": "scores.example:80"}
        assert server.client.get("/model", headers=named).status_code == 200
        retrained(folder)
        server.process.send_signal(signal.SIGHUP)
        version = server.wait_for("now serving model (.*)")
        assert server.client.get("/model").json()["model"] == version
        assert sent_in_two_halves(server, PAIR_BYTES) == b"HTTP/1.1 200 OK"
        assert server.process.wait(30) == 0
        assert server.wait_for(r"^loaded (.*)") == "[]"
        assert "stopped" in server.lines and not any("error" in line for line in server.lines)
    assert len([line for line in server.lines if "on http://" in line]) == 1


PAIR_BYTES = b'{"users": [1], "items": [2]}'


def sent_in_two_halves(server: Running, body: bytes) -> bytes:
    """The status line of a request that was in flight when SIGTERM came."""
    url = server.client.base_url
    with socket.create_connection((url.host, url.port or 80), timeout=10) as connection:
        head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body[:5])
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert server.process.poll() is None
        connection.sendall(body[5:])
        return connection.recv(4096).split(b"\r\n")[0]


@pytest.mark.slow
@pytest.mark.serial
def test_what_is_not_done_when_the_time_to_drain_is_up_is_503_and_the_server_ends(
    run: Path,
) -> None:
    """Half a request, and SIGTERM: the other half never comes."""
    with running(run, "--watch", "0", "--drain", "1") as server:
        url = server.client.base_url
        with socket.create_connection((url.host, url.port or 80), timeout=10) as connection:
            head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
            head += "Content-Type: application/json\r\nContent-Length: 27\r\n\r\n{"
            connection.sendall(head.encode())
            time.sleep(0.2)
            begun = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            answer = connection.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 503") and b'{"error":"shutting down"}' in answer
        assert server.process.wait(10) == 0
        assert time.monotonic() - begun < 8  # and not the 10 s of --timeout, or 30 s of --drain


def test_the_address_is_printed_once_it_takes_connections(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    def connect(listener: socket.socket, *rest: object) -> None:
        with socket.create_connection(listener.getsockname(), timeout=10):
            taken.append(rest)

    monkeypatch.setattr("recsys_moe.serve.server._announce", connect)
    caller = Caller(run)
    config = uvicorn.Config(caller.app, log_config=None, lifespan="off")
    config.load()
    server = Server(config, caller.service, Settings(watch=0))
    server.lifespan = config.lifespan_class(config)

    async def start(listener: socket.socket) -> None:
        await server.startup([listener])
        await server.shutdown([listener])

    with _listener("127.0.0.1", 0) as listener:
        asyncio.run(start(listener))
    assert len(taken) == 1


def test_a_server_that_shuts_down_is_not_ready(run: Path) -> None:
    caller = Caller(run)
    server = Server(uvicorn.Config(caller.app, log_config=None), caller.service, Settings())
    assert caller("GET", "/readyz").status_code == 200
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit
    assert caller("GET", "/readyz").status_code == 503
    assert caller.post("/predict", PAIR).status_code == 200  # what is in flight is answered


def test_the_listening_socket_names_tcp_without_which_every_answer_takes_40_ms() -> None:
    with _listener("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP  # what asyncio asks before TCP_NODELAY


def test_a_used_port_is_named_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RunError, match=f"127.0.0.1:{port}.*--port") as caught:
            serve(Path("/no/model"), Settings(port=port))
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("line", ["modle: {}", "model: {num_experts: 0}"])
def test_a_model_whose_settings_are_not_valid_is_exit_code_3(folder: Path, line: str) -> None:
    (folder / "config.yaml").write_text(f"{line}\n")
    sealed(folder, "config.yaml")
    with pytest.raises(DataError, match=r"config\.yaml cannot be used: .*") as caught:
        serve(folder, Settings(port=0))
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="neither a model folder"):
        serve(folder.parent / "no", Settings(port=0))


def test_the_key_comes_from_the_file_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RECSYS_MOE_API_KEY", raising=False)
    assert read_key(None) is None
    monkeypatch.setenv("RECSYS_MOE_API_KEY", "from-environment")
    assert read_key(None) == "from-environment"
    file = tmp_path / "key"
    file.write_text("from-file\n")
    assert read_key(file) == "from-file"


@pytest.mark.parametrize("key", ["", "  \n", "two words", "\u00e9"])
def test_a_key_that_no_header_can_carry_is_refused(tmp_path: Path, key: str) -> None:
    file = tmp_path / "key"
    file.write_text(key, encoding="utf-8")
    with pytest.raises(ConfigError, match="one word"):
        read_key(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_key(tmp_path / "none")


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"max_rows": 0}, "--max-rows .*got 0"),
        ({"timeout": 0.0}, "--timeout"),
        ({"timeout": float("nan")}, "--timeout"),
        ({"max_queue": 10}, "--max-queue must be at least --max-rows"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(settings: dict[str, float], part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        Limits(**settings)  # type: ignore[arg-type]
