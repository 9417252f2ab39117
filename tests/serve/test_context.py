"""Context features over HTTP: the scores of Python, unknown categories, refusals, the page."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.config.settings import parse_config
from recsys_moe.inference.predictor import ColdUser, Predictor
from recsys_moe.train.fit import fit
from tests.conftest import TINY_MODEL
from tests.serve.browsing import By, Page
from tests.serve.conftest import Caller, threaded
from tests.serve.test_cold_start import answer

EVENING: dict[str, Any] = {"hour": "3h", "price": 12.5}


@pytest.fixture(scope="module")
def caller(context_run: Path) -> Caller:
    return Caller(context_run)


@pytest.fixture(scope="module")
def predictor(context_run: Path) -> Predictor:
    return Predictor.load(context_run)


@pytest.mark.parametrize(
    "context", [EVENING, [EVENING, {}], [EVENING, {"hour": None}], {}], ids=str
)
def test_predict_gives_the_scores_of_python(
    context: Any, caller: Caller, predictor: Predictor
) -> None:
    found = answer(caller, "/predict", {"users": [1, 2], "items": [3, 4], "context": context})
    expected = predictor.score([1, 2], [3, 4], context=context).tasks
    for task, values in expected.items():
        assert found["scores"][task] == pytest.approx(values.tolist(), abs=1e-6)
    assert found["unused"] == []


def test_requests_that_run_together_keep_their_contexts(
    caller: Caller, predictor: Predictor
) -> None:
    contexts: list[Any] = [EVENING, None, [{"hour": "0h"}, {"hour": "9h"}], {"price": 1}]
    bodies = [
        {"users": [1, 2], "items": [3, 4], **({"context": one} if one else {})} for one in contexts
    ]

    async def all_at_once(client: Any) -> Any:
        return await asyncio.gather(*(client.post("/predict", json=body) for body in bodies))

    answers = [one.json() for one in caller.together(all_at_once)]
    for one, found in zip(contexts, answers, strict=True):
        expected = predictor.score([1, 2], [3, 4], context=one).tasks["rating"].tolist()
        assert found["scores"]["rating"] == pytest.approx(expected, abs=1e-6)
    unknown = {"row": 1, "entity": "context", "categories": {"hour": ["9h"]}}
    assert [one["unused"] for one in answers] == [
        [],
        [],
        [{**unknown, "items": [], "repeated": []}],
        [],
    ]


def test_recommend_ranks_in_a_context(caller: Caller, predictor: Predictor) -> None:
    new = {"features": {"age": 45, "job": "pilot"}, "history": [3]}
    body = {"users": [5, new], "k": 5, "context": [EVENING, {"hour": "9h"}]}
    rankings = answer(caller, "/recommend", body)["rankings"]
    whom = [5, ColdUser(new["features"], new["history"])]  # type: ignore[arg-type]
    lists = predictor.recommend(whom, 5, context=[EVENING, {"hour": "9h"}])
    for found, expected in zip(rankings, lists, strict=True):
        assert [one["item"] for one in found["items"]] == [one.item for one in expected]
    assert rankings[0]["unused"] is None
    assert rankings[1]["unused"]["categories"] == {"job": ["pilot"], "hour": ["9h"]}


def test_explanations_are_of_the_context(caller: Caller, predictor: Predictor) -> None:
    body = {"users": [5], "items": [7], "context": EVENING, "attributions": 9}
    [pair] = answer(caller, "/explain", body)["pairs"]
    expected = float(predictor.score([5], [7], context=EVENING).tasks["rating"])
    assert pair["tasks"]["rating"]["score"] == pytest.approx(expected, abs=1e-6)
    words = {one["words"] for one in pair["tasks"]["rating"]["attributions"]}
    assert {"hour=3h", "price=12.5"} <= words


def test_the_model_names_its_context(caller: Caller, run: Path) -> None:
    assert caller("GET", "/model").json()["context_features"] == [
        {"name": "hour", "kind": "categorical", "values": ["0h", "1h", "2h", "3h"]},
        {"name": "price", "kind": "numeric", "values": []},
    ]
    assert Caller(run)("GET", "/model").json()["context_features"] == []


REFUSED = {
    "unknown": ({"our": "3h"}, "unknown context feature 'our'; did you mean 'hour'"),
    "no number": ({"price": "cheap"}, "feature 'price' must be a finite number, got 'cheap'"),
    "a list": ({"hour": ["3h"]}, "must be text, a finite number, true, false, or null"),
    "too few": ([{}], "context must be of all rows or one for each of 2, got 1"),
    "text": ("3h", "must be an object of context features, or a list of one per row"),
}


@pytest.mark.parametrize(("context", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused(context: Any, message: str, caller: Caller) -> None:
    for path, body in (("/predict", {"items": [3, 4]}), ("/recommend", {})):
        response = caller.post(path, {"users": [1, 2], **body, "context": context})
        assert response.status_code == 422 and message in response.json()["error"], response.text


@pytest.mark.slow
def test_the_page_has_a_field_for_each_feature(
    browser: Any, context_run: Path, predictor: Predictor
) -> None:
    with threaded(context_run / "model") as server:
        page = Page(browser, server)
        page.wait(lambda: page.focused() == "user")
        for field, value in (("context-0", "3h"), ("context-1", "12.5")):
            browser.find_element(By.ID, field).send_keys(value)
        browser.find_element(By.ID, "user").click()
        page.ask("5")
        [expected] = predictor.recommend([5], exclude_seen=True, context=EVENING)
        shown = [row.text for row in page.rows()]
        assert len(shown) == len(expected) > 3
        for row, one in zip(shown, expected, strict=True):
            assert str(one.title) in row
        assert any("hour=3h" in row for row in shown)


@pytest.mark.slow
def test_a_model_that_reads_the_time_names_it_and_the_page_has_a_field_for_it(
    browser: Any, live: Path, tmp_path: Path
) -> None:
    model = {**TINY_MODEL, "time_features": "all"}
    fit(parse_config({"model": model, "trainer": {"max_epochs": 1}}), live, tmp_path / "run")
    with threaded(tmp_path / "run" / "model") as server:
        page = Page(browser, server)
        page.wait(lambda: page.focused() == "user")
        field = browser.find_element(By.ID, "context-0")
        assert field.get_attribute("name") == "time"
        field.send_keys("2004-11-09 12:30")
        browser.find_element(By.ID, "user").click()
        page.ask("u1")
        at = {"time": "2004-11-09 12:30"}
        predictor = Predictor.load(tmp_path / "run")
        [expected] = predictor.recommend(["u1"], exclude_seen=True, context=at)
        assert [one.scores for one in expected] != [
            one.scores for one in predictor.recommend(["u1"], exclude_seen=True)[0]
        ]
        for row, one in zip(page.rows(), expected, strict=True):
            assert str(one.item) in row.text
    [time] = Caller(tmp_path / "run")("GET", "/model").json()["context_features"]
    assert time == {"name": "time", "kind": "time", "values": []}
