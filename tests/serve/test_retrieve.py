"""`serve --retrieve N`: lists of the service in two stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recsys_moe.errors import ConfigError
from recsys_moe.inference.predictor import Predictor
from recsys_moe.inference.ranking import retrieval
from recsys_moe.inference.ranking.retrieval import ItemIndex, Retriever
from recsys_moe.serve.models import load
from tests.conftest import Command, tells
from tests.serve.conftest import Caller

MOST, USERS = 3, [*range(1, 11)]


@pytest.fixture(scope="module")
def predictor(bilinear_run: Path) -> Predictor:
    return Predictor.load(bilinear_run)


@pytest.fixture(scope="module")
def caller(bilinear_run: Path) -> Caller:
    return Caller(bilinear_run, retrieve=MOST)


def asked(caller: Caller, **body: Any) -> list[list[int]]:
    reply = caller.post("/recommend", {"users": USERS, **body})
    assert reply.status_code == 200, reply.text
    return [[one["item"] for one in ranking["items"]] for ranking in reply.json()["rankings"]]


def expected(predictor: Predictor, k: int, **options: Any) -> list[list[Any]]:
    return [[one.item for one in ranked] for ranked in predictor.recommend(USERS, k, **options)]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many items each first stage is asked for."""
    found: list[int] = []
    retrieve = Retriever.retrieve

    def noted(self: Retriever, user_UD: Any, item_N: Any, count: int, out: Any) -> Any:
        found.append(count)
        return retrieve(self, user_UD, item_N, count, out)

    monkeypatch.setattr(Retriever, "retrieve", noted)
    return found


def test_lists_are_those_of_two_stages(
    caller: Caller, predictor: Predictor, counts: list[int]
) -> None:
    lists = asked(caller, k=MOST)
    assert asked(caller, k=MOST, score="watch") == lists and counts == [MOST, MOST]
    assert lists == expected(predictor, MOST, retrieve=MOST)


def test_longer_lists_and_other_scores_are_exact(
    caller: Caller, predictor: Predictor, counts: list[int]
) -> None:
    assert asked(caller, k=MOST + 1) == expected(predictor, MOST + 1)
    for score in ("rating", "watch*rating"):
        assert asked(caller, k=MOST, score=score) == expected(predictor, MOST, score=score)
    assert counts == []
    wrong = caller.post("/recommend", {"users": USERS, "k": MOST, "score": "watched"})
    assert wrong.status_code == 422
    assert "score must be one of watch" in wrong.text


def test_the_index_is_there_before_the_first_request(
    bilinear_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    class Noted(ItemIndex):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            built.append(self)

    monkeypatch.setattr(retrieval, "EXACT_ITEMS", 10)
    monkeypatch.setattr(retrieval, "ItemIndex", Noted)
    caller = Caller(bilinear_run, retrieve=MOST)
    assert len(built) == 1
    asked(caller, k=MOST)
    asked(caller, k=MOST, score="rating")
    assert len(built) == 1


def test_a_model_that_cannot_retrieve_is_refused(run: Path, command: Command) -> None:
    said = command.fails(2, "serve", run, "--port", 0, "--retrieve", 20)
    assert tells(said, "--retrieve needs a model with a bilinear term")
    with pytest.raises(ConfigError, match="--retrieve needs"):
        load(run, retrieve=20)
