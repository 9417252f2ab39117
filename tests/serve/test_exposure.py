"""No answer reveals paths, tracebacks or the key, and no other origin may read one."""

from __future__ import annotations

import hmac
import re
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.serve import http
from recsys_moe.serve.app import routes
from recsys_moe.serve.page import FILES
from tests.serve.conftest import KEY, Caller, sealed

JSON = {"Content-Type": "application/json"}
RIGHT = {"Authorization": f"Bearer {KEY}"}
ELSEWHERE = {"Origin": "https://elsewhere.example"}
POSTS = ("/predict", "/recommend", "/explain", "/similar", "/seen", "/events")
ODD: tuple[Any, ...] = (
    *(b"", b"\xff", b"null", b"[]", b"{}", b"{" * 10**6, b"[" * 10**6),
    *(b'{"users": ["/etc/passwd"], "items": ["../../x"]}', b'{"user": {"history": ["/etc"]}}'),
    *(b'{"users": ["\\u0000"], "items": [0]}', b'{"item": "file:///etc/hosts", "k": 1}'),
    *(b'{"users": [1], "where": ["/etc/passwd = 1"]}', b'{"users": [1], "score": "/dev/null"}'),
    *(b'{"users": [{"features": {"/": "/"}}], "items": [1]}', b'{"user": 1, "columns": ["/"]}'),
)
ECHOED = ("/etc", "/dev", "file:///")
"""What came with the request itself may come back in a message."""
PLACE = re.compile(r"(?<![\w.:/<#])/(?:[\w.+-]+/)+[\w.+-]*|Traceback|File \"|line \d+, in ")


def revealed(text: str) -> list[str]:
    """Paths and tracebacks in an answer that are not from the request."""
    return [one for one in PLACE.findall(text) if not one.startswith(ECHOED)]


def test_every_post_with_any_body_tells_no_place(caller: Caller, run: Path) -> None:
    asked = {route.path for route in routes(caller.service) if route.method == "POST"}
    assert asked == {*POSTS}
    for path in POSTS:
        for body in ODD:
            answer = caller("POST", path, content=body, headers=JSON)
            assert answer.status_code < 500, (path, body[:60])
            assert answer.status_code == 400 or len(body) < 1000  # of a million levels
            assert revealed(answer.text) == [] and str(run) not in answer.text


def test_every_path_and_method_tells_no_place(run: Path) -> None:
    caller = Caller(run, key=KEY)
    paths = [route.path for route in routes(caller.service)]
    odd = ["/nothing", "//etc/passwd", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd"]
    for path in (*paths, *FILES, "/openapi.json", *odd):
        for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
            for headers in ({}, RIGHT):
                answer = caller(method, path, headers=headers)
                if path in FILES and answer.status_code == 200:
                    continue  # the page's own files, which have regular expressions
                assert answer.status_code < 500 and revealed(answer.text) == [], (method, path)


def test_a_fault_of_ours_tells_no_place(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> None:
        raise OSError(2, "No such file or directory", "/srv/secret/weights")

    caller = Caller(run)
    for name in ("score", "recommend", "similar", "explain", "seen"):
        monkeypatch.setattr(caller.models.current.predictor, name, broken, raising=False)
    monkeypatch.setattr(caller.service, "describe", broken)
    bodies = [{"users": [1], "items": [2]}, {"users": [1]}, {"item": 2}, {"user": 1}]
    answers = [caller.post(path, body) for path in POSTS for body in bodies]
    answers.append(caller("GET", "/model"))
    assert 500 in {answer.status_code for answer in answers}
    for answer in answers:
        assert revealed(answer.text) == []
        if answer.status_code == 500:
            assert answer.json() == {"error": "internal error"}


@pytest.mark.parametrize("place", ["plain", "link", "relative", "run"])
def test_a_reload_that_fails_tells_no_place(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Whatever file is damaged, signed or not, and however the folder was named."""
    named = {"plain": folder, "run": folder.parent, "link": tmp_path / "now"}.get(place)
    (tmp_path / "now").symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    caller = Caller(named or Path("model"), key=KEY)
    messages = []
    for file in sorted(folder.iterdir()):
        content = file.read_bytes()
        for change in (b"", b"\xff", content[: len(content) // 2], None):
            file.write_bytes(change) if change is not None else file.unlink()
            for signed in (False, True):
                if signed and change is not None and file.name != "manifest.json":
                    sealed(folder, file.name)
                answer = caller("POST", "/reload", headers=RIGHT)
                assert answer.status_code in (200, 409)
                messages.append(answer.text)
                assert revealed(answer.text) == [] and str(tmp_path) not in answer.text
            file.write_bytes(content)
            if file.name != "manifest.json":
                sealed(folder, file.name)
    assert len({text for text in messages if "the old model stays" in text}) > 10


@pytest.mark.parametrize("path", [*POSTS, "/model", "/metrics", "/healthz", "/reload", *FILES])
def test_a_page_from_elsewhere_may_not_read_an_answer(run: Path, path: str) -> None:
    """No CORS: a browser asks before it sends JSON or a key, and hears nothing that allows it."""
    caller = Caller(run, key=KEY)
    asks = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    before = caller("OPTIONS", path, headers={**ELSEWHERE, **asks})
    assert before.status_code == 405
    method = "POST" if path in (*POSTS, "/reload") else "GET"
    for headers in ({**ELSEWHERE, **RIGHT}, ELSEWHERE):
        answer = caller(method, path, headers=headers)
        for one in (before, answer):
            assert [name for name in one.headers if name.startswith("access-control")] == []


def test_keys_are_compared_by_compare_digest_and_by_nothing_else(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock would be a flaky witness; this sees every comparison, of whole keys, and obeys it."""
    caller, compared = Caller(run, key=KEY), []
    keys = ("", KEY[:1], KEY[:-1] + "x", KEY, "x" * len(KEY), "x" * 5000, "\xe9")

    def spying(answer: bool) -> None:
        def compare(given: bytes, right: bytes) -> bool:
            compared.append((given, right))
            return answer

        monkeypatch.setattr(http.hmac, "compare_digest", compare)

    for answer, status in ((False, 401), (True, 200)):
        spying(answer)
        compared.clear()
        for key in keys:
            headers = [(b"authorization", b"Bearer " + key.encode("latin-1"))]
            assert caller("GET", "/model", headers=headers).status_code == status
        assert compared == [(key.encode(), KEY.encode()) for key in keys]
    compared.clear()
    for scheme in ("Basic", "Digest", KEY):  # a wrong scheme takes as long
        headers = {"Authorization": f"{scheme} {KEY}"}
        assert caller("GET", "/model", headers=headers).status_code == 401
    assert len(compared) == 3
    assert http.hmac is hmac


def test_the_key_is_in_no_answer_and_in_no_log(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    caller = Caller(run, key=KEY)
    texts = [caller("GET", path, headers=RIGHT).text for path in ("/model", "/metrics", "/nothing")]
    assert KEY not in "".join([*texts, caplog.text])
