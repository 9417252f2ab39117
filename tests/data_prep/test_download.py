"""Downloads from a server on this machine: whole, resumed, retried, verified."""

from __future__ import annotations

import hashlib
import http.server
import logging
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from data_prep import movielens
from data_prep.read import download
from recsys_moe.schema import ConfigError, DataError
from tests.data_prep.samples import prepare_subset, write_dat, zipped

BODY = bytes(range(256)) * 4000  # about 1 MB
SHA256 = hashlib.sha256(BODY).hexdigest()


@dataclass
class Server:
    """What the server is to do next, and what it was asked."""

    url: str = ""
    body: bytes = BODY
    answers: list[object] = field(default_factory=list)
    """For the next requests: a status to fail with, or ("cut", bytes) to break off after."""
    ranges: list[str | None] = field(default_factory=list)
    ignores_range: bool = False


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.ranges.append(self.headers.get("Range"))
            answer = state.answers.pop(0) if state.answers else None
            if isinstance(answer, int):
                self.send_error(answer)
                return
            start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
            if state.ignores_range:
                start = 0
            if start >= len(state.body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(state.body)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(state.body) - start))
            self.end_headers()
            stop = answer[1] if isinstance(answer, tuple) else None
            self.wfile.write(state.body[start : start + stop if stop else None])

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        state.url = f"http://127.0.0.1:{listening.server_port}/file.zip"
        thread = threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield state
        listening.shutdown()
        thread.join()


def fetch(server: Server, folder: Path, checksum: str = SHA256) -> tuple[Path, list[float]]:
    pauses: list[float] = []
    return download.fetch(server.url, checksum, folder, wait=pauses.append), pauses


@pytest.mark.parametrize("checksum", [SHA256, SHA256.upper(), hashlib.md5(BODY).hexdigest()])
def test_a_file_arrives_whole_and_is_not_fetched_again(
    checksum: str, server: Server, tmp_path: Path
) -> None:
    path, pauses = fetch(server, tmp_path / "cache", checksum)
    assert path == tmp_path / "cache" / "file.zip"
    assert path.read_bytes() == BODY and pauses == []
    assert fetch(server, tmp_path / "cache", checksum)[0] == path
    assert server.ranges == [None]
    assert [p.name for p in path.parent.iterdir()] == ["file.zip"]


def test_a_broken_transfer_is_resumed_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.answers = [("cut", 1000), 503, ("cut", 500)]
    path, pauses = fetch(server, tmp_path)
    assert path.read_bytes() == BODY
    assert server.ranges == [None, "bytes=1000-", "bytes=1000-", "bytes=1500-"]
    assert pauses == [1.0, 2.0, 4.0]


LEFT = {
    "a part": ({"file.zip.part": BODY[:4321]}, ["bytes=4321-"]),
    "the whole as a part": ({"file.zip.part": BODY}, ["bytes=1024000-", None]),
    "too long a part": ({"file.zip.part": BODY + b"more"}, ["bytes=1024004-", None]),
    "a damaged file": ({"file.zip": b"damaged"}, [None]),
}


@pytest.mark.parametrize(("left", "ranges"), LEFT.values(), ids=LEFT)
def test_the_next_call_continues_with_what_is_usable(
    left: dict[str, bytes], ranges: list[str | None], server: Server, tmp_path: Path
) -> None:
    for name, content in left.items():
        (tmp_path / name).write_bytes(content)
    assert fetch(server, tmp_path)[0].read_bytes() == BODY
    assert server.ranges == ranges


def test_a_server_that_cannot_resume_starts_again(server: Server, tmp_path: Path) -> None:
    server.ignores_range = True
    (tmp_path / "file.zip.part").write_bytes(b"old")
    assert fetch(server, tmp_path)[0].read_bytes() == BODY


@pytest.mark.parametrize(
    ("status", "times", "message"),
    [(503, 5, "answered 503 after 5 attempts.*--source"), (404, 1, r"file\.zip: .* answered 404")],
)
def test_a_server_that_fails_is_asked_again_only_where_that_may_help(
    status: int, times: int, message: str, server: Server, tmp_path: Path
) -> None:
    server.answers = [status] * 5
    with pytest.raises(DataError, match=message):
        fetch(server, tmp_path)
    assert len(server.ranges) == times


def test_another_checksum_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    wrong = "0" * 64
    with pytest.raises(DataError, match=f"sha256 must be {wrong}, got {SHA256}"):
        fetch(server, tmp_path, wrong)
    assert list(tmp_path.iterdir()) == []


def test_no_connection_is_an_error_of_one_line(tmp_path: Path) -> None:
    server = Server(url="http://127.0.0.1:9/file.zip")
    with pytest.raises(DataError, match="no connection .* after 5 attempts") as failure:
        fetch(server, tmp_path)
    assert "\n" not in str(failure.value)


def test_a_lapsed_certificate_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise urllib.error.URLError(ssl.SSLCertVerificationError("certificate has expired"))

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(
        DataError, match="certificate has expired.* expires from time to time.*--source"
    ):
        download.fetch("https://example.org/x.zip", SHA256, tmp_path)


@pytest.mark.parametrize("checksum", ["", "abc", "g" * 64])
def test_a_checksum_must_be_one(checksum: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--checksum must be 64"):
        download.fetch("http://127.0.0.1:9/x", checksum, tmp_path)


def test_progress_is_logged_where_there_is_no_terminal(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="recsys_moe.prepare"):
        fetch(server, tmp_path)
    assert "file.zip: 100% of 1024000 bytes" in caplog.text


def test_a_terminal_gets_a_bar(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert fetch(server, tmp_path)[0].read_bytes() == BODY


def test_movielens_takes_a_url_into_the_cache(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECSYS_MOE_CACHE", str(tmp_path / "cache"))
    archive = zipped(write_dat(tmp_path / "ml-1m"), tmp_path / "ml-1m.zip", "ml-1m")
    server.body = archive.read_bytes()
    with pytest.raises(DataError, match=f"must be {movielens.SHA256['1m']}"):
        prepare_subset("1m", server.url, tmp_path / "out")
    checksum = hashlib.sha256(server.body).hexdigest()
    schema = prepare_subset("1m", server.url, tmp_path / "out", checksum=checksum)
    assert sum(schema.rows.values()) == 66
    assert (tmp_path / "cache" / "file.zip").is_file()


def test_the_cache_is_below_home_unless_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECSYS_MOE_CACHE", raising=False)
    assert download.cache_folder() == Path.home() / ".cache" / "recsys-moe"
