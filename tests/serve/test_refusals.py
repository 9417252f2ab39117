"""Refusals under load, and of bodies: the status and header that a client acts on."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from recsys_moe.serve.limits import Limits
from tests.serve.conftest import Caller

PAIR = {"users": [1], "items": [2]}
RANKING = {"users": [1], "k": 3}
JSON = {"Content-Type": "application/json"}


class Held:
    """Rankings of a service start, and then wait until they are let go."""

    def __init__(self, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started, self.released = threading.Event(), threading.Event()
        predictor = caller.models.current.predictor
        self._recommend = predictor.recommend
        monkeypatch.setattr(predictor, "recommend", self)

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.started.set()
        assert self.released.wait(20)
        return self._recommend(*args, **options)


async def until_queued(client: httpx.AsyncClient, line: str) -> None:
    for _ in range(1000):
        if line in (await client.get("/metrics")).text:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"no {line!r}")


def test_a_full_queue_is_429_with_retry_after_and_what_waits_is_answered(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(run, Limits(max_users=1, max_explain=1, max_queue_users=1))
    held = Held(caller, monkeypatch)

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        first = asyncio.ensure_future(client.post("/recommend", json=RANKING))
        await asyncio.to_thread(held.started.wait, 20)
        second = asyncio.ensure_future(client.post("/recommend", json=RANKING))
        await until_queued(client, 'recsys_moe_queue_rows{kind="recommend"} 1.0')
        third = await client.post("/recommend", json=RANKING)
        held.released.set()
        return [await first, await second, third]

    first, second, third = caller.together(ask)
    assert (first.status_code, second.status_code, third.status_code) == (200, 200, 429)
    assert third.headers["retry-after"] == "1"
    assert "too many recommend requests" in third.json()["error"]


def test_as_many_users_as_may_wait_and_a_new_one_are_answered_when_alone(
    featured_run: Path,
) -> None:
    caller = Caller(featured_run, Limits(max_users=2, max_explain=1, max_queue_users=2))
    answer = caller.post("/recommend", {"users": [1, 2], "history": [3], "k": 1})
    assert answer.status_code == 200 and len(answer.json()["rankings"]) == 3


def test_a_late_answer_is_504_and_later_requests_are_answered(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(run, Limits(timeout=0.1))
    held = Held(caller, monkeypatch)

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        answers = [await client.post("/recommend", json=RANKING)]
        held.released.set()
        while answers[-1].status_code != 200 and len(answers) < 50:
            answers.append(await client.post("/recommend", json=RANKING))
        return answers

    late, *_, last = caller.together(ask)
    assert late.status_code == 504
    assert late.json().keys() == {"error"} and "0.1 s" in late.json()["error"]
    assert last.status_code == 200


def test_an_announced_size_above_the_limit_is_refused_before_the_body_is_read(
    caller: Caller,
) -> None:
    read = []

    async def body() -> AsyncIterator[bytes]:
        read.append(True)
        yield b"{}"

    headers = {**JSON, "Content-Length": "2000000000"}
    answer = caller("POST", "/predict", content=body(), headers=headers)
    assert (answer.status_code, read) == (413, [])


def test_a_compressed_body_is_415(caller: Caller) -> None:
    headers = {**JSON, "Content-Encoding": "gzip"}
    content = gzip.compress(json.dumps(PAIR).encode())
    answer = caller("POST", "/predict", content=content, headers=headers)
    assert answer.status_code == 415
    assert "compressed" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/predict/", "/reload/", "/page.js/"])
def test_a_slash_too_many_is_404_and_no_redirect_to_a_host_of_the_callers_choice(
    caller: Caller, path: str
) -> None:
    answer = caller.post(path, PAIR, headers={"Host": "elsewhere.example"})
    assert answer.status_code == 404
    assert "location" not in answer.headers


def test_when_too_many_requests_wait_others_are_429_before_their_bodies_are_read(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Health, metrics and /model are answered all the same."""
    caller = Caller(run, Limits(max_requests=1))
    held = Held(caller, monkeypatch)

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        first = asyncio.ensure_future(client.post("/recommend", json=RANKING))
        await asyncio.to_thread(held.started.wait, 20)
        answers = [await client.post(path, content=b"{") for path in ("/predict", "/explain")]
        answers += [await client.get(path) for path in ("/healthz", "/metrics", "/model")]
        held.released.set()
        return [await first, *answers, await client.post("/predict", json=PAIR)]

    answers = caller.together(ask)
    assert [answer.status_code for answer in answers] == [200, 429, 429, 200, 200, 200, 200]
    assert answers[1].headers["retry-after"] == "1"
    assert "too many requests are waiting" in answers[1].json()["error"]
