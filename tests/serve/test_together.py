"""Lists that are asked for together are those that each request gets alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serve.conftest import Caller

EVENTS = [{"item": "i3", "time": 900_000, "value": 4}, {"item": "i5", "time": 900_001}]
REQUESTS: list[dict[str, Any]] = [
    {"users": [1], "k": 3},
    {"users": [2, 7], "k": 3},
    {"users": [3], "k": 4, "exclude_seen": True},
    {"users": [4], "k": 3, "columns": ["title"]},
    {"users": ["nobody"], "k": 3},
    {"users": [5], "history": [6, 9], "k": 3},
    {"users": [5], "k": 3, "score": "rating"},
    {"users": [6], "k": 3, "candidates": [4, 8, 15, 16]},
    {"users": [6], "k": 3, "candidates": [16, 23]},
    {"users": [8], "k": 4, "exclude_seen": True},
]
WITH_EVENTS: list[dict[str, Any]] = [
    {"users": ["u1"], "k": 3},
    {"users": ["u1"], "k": 3, "events": EVENTS},
    {"users": ["u2", "u7"], "k": 3, "events": [EVENTS[:1], None]},
    {"users": ["u2", "u7"], "k": 3, "events": EVENTS[1:]},
    {"users": ["nobody"], "k": 3, "events": EVENTS},
    {"users": ["u3"], "k": 3, "events": EVENTS, "exclude_seen": True},
    {"events": EVENTS, "k": 3},
]


def replies(caller: Caller, bodies: list[dict[str, Any]]) -> list[httpx.Response]:
    async def all_at_once(client: httpx.AsyncClient) -> list[httpx.Response]:
        asked = (client.post("/recommend", json=body) for body in bodies)
        return list(await asyncio.gather(*asked))

    found: list[httpx.Response] = caller.together(all_at_once)
    return found


def assert_alike(found: Any, alone: Any) -> None:
    """Equal, but for the last bits of scores."""
    if isinstance(alone, float):
        assert found == pytest.approx(alone, abs=1e-5)
    elif isinstance(alone, dict):
        assert found.keys() == alone.keys()
        for name, one in alone.items():
            assert_alike(found[name], one)
    elif isinstance(alone, list):
        assert len(found) == len(alone)
        for pair in zip(found, alone, strict=True):
            assert_alike(*pair)
    else:
        assert found == alone


def calls_of(monkeypatch: pytest.MonkeyPatch, caller: Caller) -> list[int]:
    """Users of each call of the predictor."""
    sizes: list[int] = []
    predictor = caller.models.current.predictor
    recommend = predictor.recommend

    def counted(users: Any, *given: Any, **options: Any) -> Any:
        sizes.append(len(users))
        return recommend(users, *given, **options)

    monkeypatch.setattr(predictor, "recommend", counted)
    return sizes


@pytest.mark.parametrize(
    ("name", "bodies"), [("featured_run", REQUESTS), ("timed_run", WITH_EVENTS)]
)
def test_lists_do_not_depend_on_who_else_asks(
    name: str,
    bodies: list[dict[str, Any]],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caller = Caller(request.getfixturevalue(name))
    alone = [caller.post("/recommend", body).json() for body in bodies]
    sizes = calls_of(monkeypatch, caller)
    together = replies(caller, bodies)
    assert [one.status_code for one in together] == [200] * len(bodies)
    assert_alike([one.json() for one in together], alone)
    assert sum(sizes) == sum(len(one["rankings"]) for one in alone)
    assert len(sizes) < len(bodies), "no two requests ran together"


@pytest.mark.parametrize("wrong", [{"where": ["colour=red"]}, {"columns": ["colour"]}])
def test_a_wrong_request_fails_alone(run: Path, wrong: dict[str, Any]) -> None:
    """In a batch of its own, and in that of the others."""
    found = replies(Caller(run), [REQUESTS[0], {"users": [1], "k": 3, **wrong}, REQUESTS[1]])
    assert [one.status_code for one in found] == [200, 422, 200]


def test_users_of_a_batch_that_fails_are_counted_once(run: Path) -> None:
    """Two unknown users in the batch of a request that is refused for its columns."""
    caller = Caller(run)
    bodies = [{"users": ["a", "b"], "k": 3}, {"users": [1], "k": 3, "columns": ["colour"]}]
    assert [one.status_code for one in replies(caller, bodies)] == [200, 422]
    assert 'recsys_moe_unseen_ids_total{of="user"} 2.0' in caller("GET", "/metrics").text


def test_requests_that_ask_for_others_lists_wait_for_their_turn(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(run)
    sizes = calls_of(monkeypatch, caller)
    replies(caller, [REQUESTS[0], REQUESTS[1], REQUESTS[6], REQUESTS[0]])
    assert sizes == [3, 1, 1]


def test_rows_that_compete_for_experts_are_ranked_alone(
    rivals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller = Caller(rivals)
    sizes = calls_of(monkeypatch, caller)
    assert [one.status_code for one in replies(caller, REQUESTS[:2] * 3)] == [200] * 6
    assert sorted(sizes) == [1, 1, 1, 2, 2, 2]


def test_a_large_catalogue_has_batches_of_one_user(run: Path, monkeypatch: Any) -> None:
    """At most 32 users; of 40 items 80 scores are those of 2. Other models have other batches."""
    caller = Caller(run)
    for scores, users in ((8192, 32), (79, 1), (80, 2), (39, 1)):
        monkeypatch.setattr("recsys_moe.serve.service.BATCH_SCORES", scores)
        caller.post("/recommend", REQUESTS[0])
        assert caller.service.batcher._queues["recommend"].max_batch == users
