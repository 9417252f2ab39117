"""On a loopback address only the names of the service are allowed in `Host`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from recsys_moe.errors import ConfigError
from recsys_moe.serve.app import build_app
from recsys_moe.serve.http import allowed_hosts, checked_names
from recsys_moe.serve.server import Settings
from tests.serve.conftest import KEY, Caller

RIGHT = {"Authorization": f"Bearer {KEY}"}
LOOPBACK = frozenset({b"localhost", b"127.0.0.1", b"::1"})


class Named(Caller):
    """A service on 127.0.0.1 that also goes by `scores.example`."""

    def __init__(self, folder: Path, key: str | None = None) -> None:
        super().__init__(folder, key=key)
        self.service.hosts = allowed_hosts("127.0.0.1", ["scores.example"])
        self.app = build_app(self.service)


@pytest.fixture(scope="module")
def named(run: Path) -> Named:
    return Named(run)


@pytest.fixture(scope="module")
def guarded(run: Path) -> Named:
    return Named(run, key=KEY)


@pytest.mark.parametrize(
    ("bound", "names", "expected"),
    [
        ("127.0.0.1", [], LOOPBACK),
        ("::1", [], LOOPBACK),
        ("127.0.0.9", [], LOOPBACK | {b"127.0.0.9"}),
        ("0.0.0.0", [], None),
        ("::", [], None),
        ("192.0.2.7", ["a.example"], LOOPBACK | {b"192.0.2.7", b"a.example"}),
        ("127.0.0.1", ["a.example"], LOOPBACK | {b"a.example"}),
        ("127.0.0.1", ["*"], None),
    ],
)
def test_names_are_asked_of_a_loopback_address_or_where_some_are_given(
    bound: str, names: list[str], expected: frozenset[bytes] | None
) -> None:
    assert allowed_hosts(bound, names) == expected


ALLOWED = ["127.0.0.1:8000", "LOCALHOST:80", "localhost.", "[::1]", "[::1]:1", "Scores.Example:443"]


@pytest.mark.parametrize("host", ALLOWED)
def test_its_own_names_are_answered(named: Named, host: str) -> None:
    answer = named.post("/predict", {"users": [1], "items": [2]}, headers={"Host": host})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "host",
    ["elsewhere.example", "localhost.elsewhere.example:8000", "0.0.0.0", "", "localhost@b.c"],
)
@pytest.mark.parametrize("path", ["/predict", "/model", "/openapi.json", "/nothing", "/"])
def test_another_name_is_421_before_the_key_is_looked_at(
    guarded: Named, path: str, host: str
) -> None:
    method = "POST" if path == "/predict" else "GET"
    answer = guarded(method, path, headers={"Host": host, **RIGHT})
    assert answer.status_code == 421
    assert list(answer.json()) == ["error"] and "--allow-host" in answer.json()["error"]


def test_a_simple_health_check_without_a_name_is_answered(named: Named) -> None:
    sent = []

    async def send(message: object) -> None:
        sent.append(message)

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "GET", "path": "/healthz", "headers": []}
    asyncio.run(named.app({**scope, "query_string": b""}, receive, send))
    assert sent[0]["status"] == 200  # type: ignore[index]


def test_the_document_names_421_where_names_are_asked_and_the_counter_counts_it(
    run: Path, named: Named
) -> None:
    def documented(caller: Caller) -> set[bool]:
        paths = caller("GET", "/openapi.json", headers={"Host": "localhost"}).json()["paths"]
        return {"421" in way["responses"] for path in paths.values() for way in path.values()}

    assert documented(named) == {True}
    assert documented(Caller(run)) == {False}
    named("GET", "/model", headers={"Host": "elsewhere.example"})
    text = named("GET", "/metrics", headers={"Host": "localhost"}).text
    assert 'recsys_moe_requests_total{route="/model",status="421"}' in text


@pytest.mark.parametrize("name", ["", "http://a", "a:80", "a/b", "a b", "-a", "\u00e4.example"])
def test_an_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="--allow-host must be a name"):
        Settings(hosts=(name,))
    assert checked_names(["A.Example", "[2001:db8::1]", "*"]) == ("a.example", "2001:db8::1", "*")
