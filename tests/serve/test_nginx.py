"""docs/deploy/nginx.conf, read and run by nginx itself."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.serve.conftest import KEY, Threaded, threaded

CONF = Path(__file__).parents[2] / "docs" / "deploy" / "nginx.conf"
PAIR = {"users": [1], "items": [2]}
NGINX = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin") or ""
pytestmark = pytest.mark.skipif(not NGINX, reason="nginx is not installed")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def configured(folder: Path, changes: dict[str, str]) -> list[str]:
    """The command that runs nginx with the shipped file but for ports and times."""
    text = CONF.read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "nginx.conf").write_text(text)
    (folder / "tmp").mkdir(exist_ok=True)
    places = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    own = "".join(f"{place}_temp_path {folder}/tmp;" for place in places)
    inside = text.replace("http {", f"http {{ access_log off; {own}", 1)
    (folder / "nginx.conf").write_text(inside)
    words = f"pid {folder}/pid; error_log {folder}/error.log; daemon off; master_process off;"
    return [NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", words]


@pytest.fixture(scope="module")
def service(run: Path) -> Iterator[Threaded]:
    with threaded(run) as service:
        yield service


@pytest.fixture(scope="module")
def proxy(service: Threaded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    port = free_port()
    changes = {
        "127.0.0.1:8000": f"127.0.0.1:{service.listener.getsockname()[1]}",
        "listen 80;": f"listen 127.0.0.1:{port};",
        "client_header_timeout 10s": "client_header_timeout 1s",
        "client_body_timeout 10s": "client_body_timeout 1s",
    }
    command = configured(tmp_path_factory.mktemp("nginx"), changes)
    subprocess.run([*command, "-t"], check=True, capture_output=True)
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        headers = {"Authorization": f"Bearer {KEY}", "Host": "scores.example"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers) as client:
            for _ in range(100):
                try:
                    client.get("/healthz")
                    break
                except httpx.ConnectError:
                    time.sleep(0.05)
            yield client
    finally:
        process.terminate()
        process.wait(20)


def test_what_passes_is_answered_by_the_service(proxy: httpx.Client, service: Threaded) -> None:
    answer = proxy.post("/predict", json=PAIR)
    assert answer.json() == service.client.post("/predict", json=PAIR).json()
    assert proxy.get("/metrics").status_code == 403


def test_a_large_body_and_too_many_requests_never_reach_the_service(proxy: httpx.Client) -> None:
    assert proxy.post("/predict", content=b" " * (2 << 20)).status_code == 413
    statuses = [proxy.get("/healthz").status_code for _ in range(400)]
    assert {*statuses} == {200, 429}
    time.sleep(2.5)  # the burst of 100 at 50 a second


@pytest.mark.parametrize("head", [b"POST /predict HTTP/1.1\r\nHos", b"Content-Length: 9\r\n\r\n{"])
def test_a_slow_client_is_dropped(proxy: httpx.Client, head: bytes) -> None:
    sent = head if head.startswith(b"POST") else b"POST /predict HTTP/1.1\r\nHost: a\r\n" + head
    with socket.create_connection((proxy.base_url.host, proxy.base_url.port or 80)) as connection:
        connection.sendall(sent)
        connection.settimeout(10)
        assert connection.recv(4096)[:12] in (b"", b"HTTP/1.1 408")
