"""New users and items score the same over HTTP, in Python and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from recsys_moe.inference.predictor import ColdUser, Predictor
from tests.conftest import Command, tells
from tests.serve.conftest import Caller

FEATURES = {"age": 20, "job": "job 1"}
HISTORIES: dict[str, dict[str, Any]] = {
    "featured": {"features": FEATURES},
    "history": {"history": {"3": None, "5": 4, "9": 1}},
}


@pytest.fixture(scope="module")
def featured_caller(featured_run: Path) -> Caller:
    return Caller(featured_run)


@pytest.fixture(scope="module")
def predictor(featured_run: Path) -> Predictor:
    return Predictor.load(featured_run)


def answer(caller: Caller, path: str, body: Any) -> Any:
    response = caller.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("name", HISTORIES)
def test_a_new_user_has_one_score_whichever_way_it_is_asked_for(
    name: str,
    featured_caller: Caller,
    featured_run: Path,
    predictor: Predictor,
    command: Command,
    tmp_path: Path,
) -> None:
    given = HISTORIES[name]
    [ranked] = predictor.recommend(**given, k=40)
    items = [entry.item for entry in ranked]
    new = ColdUser(**given)
    found = {"Python score": predictor.score([new] * 40, items).tasks}
    lists = answer(featured_caller, "/recommend", {**given, "k": 40})["rankings"]
    assert [entry["item"] for entry in lists[0]["items"]] == items
    found["/recommend"] = by_task([entry["scores"] for entry in lists[0]["items"]])
    body = {"users": [given] * 40, "items": items}
    found["/predict"] = answer(featured_caller, "/predict", body)["scores"]
    rated = ",".join(f"{i}={r}" if r else i for i, r in given.get("history", {}).items())
    words = [f"--features={key}={value}" for key, value in given.get("features", {}).items()]
    words += [f"--history={rated}"] if rated else []
    done = json.loads(command("recommend", featured_run, *words, "--k", 40, "--json").out)
    assert [entry["item"] for entry in done["items"]] == items
    found["recommend"] = by_task(done["items"])
    if name == "featured":  # pairs have no column for a history
        rows = {"user": "new", "item": items, **given["features"]}
        pd.DataFrame(rows).to_csv(tmp_path / "pairs.csv", index=False)
        out = tmp_path / "scores.csv"
        words = ["--input", tmp_path / "pairs.csv", "--output", out]  # type: ignore[list-item]
        assert command("predict", featured_run, *words).exit_code == 0
        found["predict"] = pd.read_csv(out)
    for way, scores in found.items():
        for task in ("watch", "rating"):
            expected = [entry.scores[task] for entry in ranked]
            assert [*map(float, scores[task])] == pytest.approx(expected, abs=1e-5), way


def by_task(entries: list[dict[str, Any]]) -> dict[str, list[float]]:
    return {task: [entry[task] for entry in entries] for task in ("watch", "rating")}


def test_new_and_known_users_are_ranked_together(
    featured_caller: Caller, predictor: Predictor
) -> None:
    new = {"history": [3, "x"], "features": {"job": "judge"}}
    body = {"users": [1, new, "nobody"], **HISTORIES["featured"], "k": 3}
    lists = answer(featured_caller, "/recommend", body)["rankings"]
    assert [one["user"] for one in lists] == [1, None, "nobody", None]
    assert [one["unseen_user"] for one in lists] == [False, True, True, True]
    nothing = {"categories": {}, "items": [], "repeated": []}
    judge = {**nothing, "categories": {"job": ["judge"]}, "items": ["x"]}
    unused = [None, judge, None, nothing]
    assert [one["unused"] for one in lists] == unused
    expected = predictor.recommend([1, ColdUser(history=[3]), "nobody", ColdUser(FEATURES)], k=3)
    for one, entries in zip(lists, expected, strict=True):
        assert [entry["item"] for entry in one["items"]] == [entry.item for entry in entries]


def test_new_items_are_scored_and_explained(featured_caller: Caller, predictor: Predictor) -> None:
    item = {"features": {"genres": ["genre 1", "genre 2"], "year": 1995.5}}
    body = {"users": [1, {}], "items": [item, item]}
    scores = answer(featured_caller, "/predict", body)
    expected = predictor.score([1, "nobody"], [ColdUser(item["features"])] * 2)
    assert scores["scores"]["rating"] == pytest.approx(expected.tasks["rating"].tolist(), abs=1e-5)
    assert (scores["unseen_user"], scores["unseen_item"]) == ([False, True], [True, True])
    pairs = answer(featured_caller, "/explain", body)["pairs"]
    assert [(one["user"], one["item"]) for one in pairs] == [(1, None), (None, None)]
    assert pairs[0]["tasks"]["watch"]["score"] == pytest.approx(scores["scores"]["watch"][0])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"k": 3}, "users ... features, history or events"),
        ({"users": [{"features": {"age": "old"}}]}, "'age' ... got 'old'"),
        ({"users": [{"age": 3}]}, "users[0]: there is no field 'age', got 3; known: "),
        (
            {"features": {"ages": 3}},
            "'ages' ... 'age'",
        ),
        ({"features": {"age": [[3]]}}, "features: "),
        ({"history": [1.5]}, "history"),
        ({"history": {"3": 77}}, "rating of item 3 ... 1..5, got 77"),
    ],
)
def test_what_cannot_be_is_a_422(body: Any, message: str, featured_caller: Caller) -> None:
    response = featured_caller.post("/recommend", body)
    assert response.status_code == 422
    assert tells(response.json()["error"], message) and "\n" not in response.json()["error"]


def test_explain_gives_the_attributions_of_the_python_api(
    featured_caller: Caller, predictor: Predictor
) -> None:
    new = {"features": FEATURES, "history": {"3": None, "5": 4, "9": 1}}
    body = {"users": [1, new], "items": [7, {"features": {"genres": ["genre 1"]}}]}
    plain = answer(featured_caller, "/explain", body)["pairs"]
    assert all(task["attributions"] == [] for pair in plain for task in pair["tasks"].values())
    pairs = answer(featured_caller, "/explain", {**body, "attributions": 2})["pairs"]
    user, item = ColdUser(**new), ColdUser({"genres": ["genre 1"]})
    expected = predictor.attributions([1, user], [7, item], 2)
    for pair, of_pair in zip(pairs, expected, strict=True):
        for task, attributions in of_pair.items():
            found = pair["tasks"][task]["attributions"]
            assert [one["words"] for one in found] == [one.words for one in attributions]
            assert [one["contribution"] for one in found] == pytest.approx(
                [one.contribution for one in attributions], abs=1e-6
            )
    words = {one["words"] for one in pairs[1]["tasks"]["watch"]["attributions"]}
    assert {"age=20", "job=job 1"} & words and len(
        words
    ) == 5  # two features, two items, the history
    assert featured_caller("GET", "/model").json()["no_attributions"] is None


def test_a_model_of_ids_has_no_attributions_and_says_why(caller: Caller) -> None:
    response = caller.post("/explain", {"users": [1], "items": [1], "attributions": 3})
    assert response.status_code == 422
    assert "the model uses ids only" in response.json()["error"]
    assert "the model uses ids only" in caller("GET", "/model").json()["no_attributions"]


def test_predict_lists_what_it_could_not_use_of_each_new_user_and_item(
    featured_caller: Caller,
) -> None:
    user = {"features": {"job": "pirate", "age": 3}, "history": [3, 977, 4, 3]}
    film = {"features": {"genres": ["opera", "genre 1"]}}
    body = {"users": [1, user, {"history": [3]}], "items": [film, 7, 7]}
    assert answer(featured_caller, "/predict", body)["unused"] == [
        {
            "row": 1,
            "entity": "user",
            "categories": {"job": ["pirate"]},
            "items": [977],
            "repeated": [3],
        },
        {
            "row": 0,
            "entity": "item",
            "categories": {"genres": ["opera"]},
            "items": [],
            "repeated": [],
        },
    ]
    assert answer(featured_caller, "/predict", {"users": [1], "items": [2]})["unused"] == []


@pytest.mark.parametrize(
    ("body", "place", "got"),
    [
        *((f'{{"users": [{one}]}}', "users[0]: ", one) for one in ("NaN", "1.5", "true", "1e+30")),
        ('{"users": [1], "candidates": [2, ""]}', "candidates[1]: ", '""'),
        ('{"history": [2, -Infinity]}', "history[1]: ", "-Infinity"),
        ('{"history": 5}', "history: ", "5"),
        ('{"history": {"2": NaN}}', "history: ", "NaN"),
        ('{"users": [1, {"history": {"2": true}}]}', "users[1]: ", "true"),
        ('{"features": {"age": NaN}}', "features: ", "NaN"),
        ('{"users": [{"features": {"genres": ["a", 1.5]}}]}', "users[0]: ", '["a", 1.5]'),
        ('{"features": {"job": "' + "x" * 600 + '"}}', "features: ", '"' + "x" * 79),
    ],
)
def test_one_wrong_value_breaks_one_rule_that_ends_with_the_value(
    body: str, place: str, got: str, featured_caller: Caller
) -> None:
    headers = {"content-type": "application/json"}
    response = featured_caller("POST", "/recommend", content=body, headers=headers)
    error = response.json()["error"]
    assert response.status_code == 422
    assert error.startswith(f"{place}must be ") and error.endswith(f", got {got}"), error
    assert "Input should" not in error and ";" not in error
