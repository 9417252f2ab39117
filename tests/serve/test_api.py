"""Answers over HTTP equal the Python API; what is refused is refused in one shape."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys_moe.artifact.calibration import Calibration
from recsys_moe.artifact.idle import IDLE_WORDS
from recsys_moe.inference.predictor import Predictor
from recsys_moe.inference.ranking.top_items import Recommendation
from recsys_moe.serve.limits import Limits
from recsys_moe.serve.replies import RankedItem
from recsys_moe.serve.request_types import exact
from tests.serve.conftest import KEY, Caller

PAIR = {"users": [1], "items": [2]}


@pytest.fixture(scope="module")
def predictor(run: Path) -> Predictor:
    return Predictor.load(run)


def test_predict_gives_the_scores_of_the_python_api(caller: Caller, predictor: Predictor) -> None:
    users = [1, 2, "3", "nobody", 5]
    items = [2, "4", 6, 8, "nothing"]
    answer = caller.post("/predict", {"users": users, "items": items}).json()
    expected = predictor.score(users, items)
    for task, values in expected.tasks.items():
        assert answer["scores"][task] == pytest.approx(values.tolist(), abs=1e-5)
    assert answer["unseen_user"] == [False, False, False, True, False]
    assert answer["unseen_item"] == [False, False, False, False, True]


def test_an_id_may_be_spelled_as_anywhere(caller: Caller) -> None:
    pairs = {"users": [7, 7.0, "7", "7.0", "007"], "items": ["4.00", 4, "4", 4.0, "4.0"]}
    answer = caller.post("/predict", pairs).json()
    assert answer["unseen_user"] == [False] * 4 + [True]
    assert answer["unseen_item"] == [False] * 5
    assert len({*answer["scores"]["watch"][:4]}) == 1
    assert caller.post("/predict", {"users": ["NaN"], "items": [4]}).status_code == 422
    assert caller.post("/recommend", {"history": {"nan": 4}}).status_code == 422


def test_requests_that_run_together_get_each_their_own_scores(
    caller: Caller, predictor: Predictor
) -> None:
    async def ask(client: Any) -> list[Any]:
        bodies = [{"users": [u], "items": [u % 7 + 1]} for u in range(1, 41)]
        answers = await asyncio.gather(*(client.post("/predict", json=b) for b in bodies))
        assert {answer.status_code for answer in answers} == {200}, [a.text for a in answers]
        return [answer.json()["scores"]["watch"][0] for answer in answers]

    expected = predictor.score(list(range(1, 41)), [u % 7 + 1 for u in range(1, 41)])
    assert caller.together(ask) == pytest.approx(expected.tasks["watch"].tolist(), abs=1e-5)
    batches = caller("GET", "/metrics").text
    ones = 'recsys_moe_batch_rows_bucket{kind="predict",le="1.0"}'
    total = 'recsys_moe_batch_rows_sum{kind="predict"}'
    number = {
        line.split()[0]: float(line.split()[1]) for line in batches.splitlines() if line[0] != "#"
    }
    assert number[ones] < number[total], "no two requests ran together"


def test_predict_gives_the_calibrated_probability_beside_the_raw_one(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrations = caller.models.current.predictor.artifact.calibration
    monkeypatch.setitem(calibrations, "watch", Calibration((0.0,), (1.0,), 100))
    answer = caller.post("/predict", {"users": [1, 5], "items": [2, 8]}).json()
    odds = [math.e * p / (1 - p) for p in answer["scores"]["watch"]]  # a logit more: e times
    expected = [o / (1 + o) for o in odds]
    assert answer["calibrated"] == {"watch": pytest.approx(expected, abs=1e-5)}
    monkeypatch.delitem(calibrations, "watch")
    assert caller.post("/predict", PAIR).json()["calibrated"] == {}


def test_requests_whose_rows_would_compete_run_one_by_one(rivals: Path) -> None:
    caller, predictor = Caller(rivals), Predictor.load(rivals)
    users = [[u, u + 1, u + 2] for u in range(1, 49, 3)]
    items = [[u % 7 + 1] * 3 for u in range(16)]

    async def ask(client: Any) -> list[Any]:
        bodies = [{"users": u, "items": i} for u, i in zip(users, items, strict=True)]
        answers = await asyncio.gather(*(client.post("/predict", json=b) for b in bodies))
        return [answer.json()["scores"]["rating"] for answer in answers]

    alone = [
        predictor.score(u, i).tasks["rating"].tolist() for u, i in zip(users, items, strict=True)
    ]
    assert sum(caller.together(ask), []) == pytest.approx(sum(alone, []), abs=1e-5)
    merged = predictor.score(sum(users, []), sum(items, [])).tasks["rating"].tolist()
    assert merged != pytest.approx(sum(alone, []), abs=1e-3)
    assert caller("GET", "/model").json()["rows_are_independent"] is False


def test_recommend_gives_the_ranking_of_the_python_api(
    caller: Caller, predictor: Predictor
) -> None:
    body = {"users": [1, "nobody"], "k": 4, "exclude_seen": True}
    rankings = caller.post("/recommend", body).json()["rankings"]
    expected = predictor.recommend([1, "nobody"], 4, exclude_seen=True)
    for ranking, entries in zip(rankings, expected, strict=True):
        assert [entry["item"] for entry in ranking["items"]] == [entry.item for entry in entries]
        for got, entry in zip(ranking["items"], entries, strict=True):
            assert got["scores"] == pytest.approx(entry.scores, abs=1e-5)
    assert [ranking["unseen_user"] for ranking in rankings] == [False, True]


def test_recommend_ranks_the_candidates_only(caller: Caller) -> None:
    body = {"users": [1], "candidates": [3, "4", "unknown"]}
    (ranking,) = caller.post("/recommend", body).json()["rankings"]
    assert {entry["item"] for entry in ranking["items"]} == {3, 4}


def test_explain_names_experts_whose_shares_sum_to_one(
    caller: Caller, predictor: Predictor
) -> None:
    (pair,) = caller.post("/explain", PAIR).json()["pairs"]
    expected = predictor.score([1], [2])
    for task, explanation in pair["tasks"].items():
        assert explanation["score"] == pytest.approx(float(expected.tasks[task][0]), abs=1e-5)
        assert sum(share["share"] for share in explanation["experts"]) == pytest.approx(1)
        assert len(explanation["experts"]) == 2  # MOESART's k


def test_similar_gives_the_neighbours_of_the_python_api(
    caller: Caller, predictor: Predictor
) -> None:
    answer = caller.post("/similar", {"item": "2", "k": 3, "columns": ["genres"]}).json()
    expected = predictor.similar(2, 3)
    assert [entry["item"] for entry in answer["items"]] == [entry.item for entry in expected]
    genres = {entry["item"]: entry["columns"]["genres"] for entry in answer["items"]}
    table = predictor.artifact.items.select(["item", "genres"]).to_pylist()
    assert genres == {row["item"]: row["genres"] for row in table if row["item"] in genres}
    cosines = [entry["scores"]["cosine"] for entry in answer["items"]]
    assert cosines == pytest.approx([entry.scores["cosine"] for entry in expected], abs=1e-6)


def test_seen_gives_the_positives_of_the_user_most_popular_first(
    caller: Caller, predictor: Predictor
) -> None:
    answer = caller.post("/seen", {"user": 7, "k": 5}).json()
    seen = predictor.seen(6)  # ids begin with 1
    counted = torch.bincount(predictor.artifact.seen["items"].long())[seen].tolist()
    assert answer["total"] == len(seen) > 5
    counts = [predictor.popularity[entry["item"] - 1].item() for entry in answer["items"]]
    assert counts == sorted(counted, reverse=True)[:5]
    assert {entry["item"] - 1 for entry in answer["items"]} <= set(seen.tolist())
    assert answer["items"][0]["title"].startswith("Item ")
    nobody = caller.post("/seen", {"user": "nobody"}).json()
    assert (nobody["unseen_user"], nobody["total"], nobody["items"]) == (True, 0, [])


def test_columns_come_along_when_they_are_asked_for(caller: Caller) -> None:
    body = {"users": [1], "k": 1}
    for columns in ([], ["genres", "planted_group"]):
        answer = caller.post("/recommend", {**body, "columns": columns}).json()
        assert list(answer["rankings"][0]["items"][0]["columns"]) == columns


def test_model_says_which_experts_are_idle_and_what_all_stand_for(caller: Caller) -> None:
    answer = caller("GET", "/model").json()
    loads = [task["load"] for task in answer["metrics"]["val"]["routing"].values()]
    idle = [e for e in range(4) if all(load[e] <= 0.1 / 4 for load in loads)]
    assert [expert["expert"] for expert in answer["experts"] if expert["idle"]] == idle
    for task, load in zip(answer["tasks"], loads, strict=True):
        assert task["spared"] == [e for e in range(4) if load[e] <= 0.1 / 4]
    assert answer["idle_rule"] == IDLE_WORDS
    assert any(expert["items"] for expert in answer["experts"])


def test_model_says_how_far_training_labels_reach(caller: Caller, run: Path) -> None:
    labels = json.loads((run / "model" / "schema.json").read_text())["labels"]["train"]["rating"]
    watch, rating = caller("GET", "/model").json()["tasks"]
    assert (rating["seen_low"], rating["seen_high"]) == (labels["min"], labels["max"])
    assert (watch["seen_low"], watch["seen_high"]) == (None, None)


def test_model_describes_itself_without_a_path(caller: Caller, run: Path) -> None:
    answer = caller("GET", "/model")
    assert answer.json()["items"] == 40
    assert answer.json()["rows_are_independent"] is True
    assert [task["name"] for task in answer.json()["tasks"]] == ["watch", "rating"]
    assert str(run) not in answer.text


BAD = [
    ("/predict", {"users": [True], "items": [2]}, "users[0]"),
    ("/predict", {"users": [1.5], "items": [2]}, "users[0]"),
    ("/predict", {"users": [2.0**63], "items": [2]}, "users[0]"),
    ("/predict", {"users": [""], "items": [2]}, "users[0]"),
    ("/recommend", {"users": [1, " "]}, "users[1]"),
    ("/predict", {"users": [None], "items": [2]}, "users[0]"),
    ("/predict", {"users": [2**63], "items": [2]}, "users[0]"),
    ("/predict", {"users": ["x" * 513], "items": [2]}, "users[0]"),
    ("/predict", {"users": 1, "items": [2]}, "users"),
    ("/predict", {"users": [], "items": []}, "users"),
    ("/predict", {"users": [1], "items": [1, 2]}, "got 1 and 2"),
    ("/predict", {"users": [1]}, "items"),
    ("/predict", {**PAIR, "rows": 10**9}, "rows"),
    ("/predict", {"users": [1] * 10_001, "items": [1] * 10_001}, "10000"),
    ("/predict", [], "body"),
    ("/explain", {"users": [1] * 101, "items": [1] * 101}, "100"),
    ("/recommend", {"users": [1], "k": 10**9}, "k"),
    ("/recommend", {"users": [1], "columns": ["genre"]}, "did you mean 'genres'?"),
    ("/seen", {"user": -(2**63) - 193}, "user"),  # -2^63 as a float
    ("/seen", {"user": 2**63}, "user"),
    ("/similar", {"item": "nothing"}, "was not seen in training"),
    ("/similar", {"item": 2, "k": 10**9}, "k"),
    ("/seen", {"user": 1, "k": 0}, "k"),
    ("/seen", {"users": [1]}, "user"),
    ("/recommend", {"users": [1], "k": True}, "k"),
    ("/recommend", {"users": [1], "k": "5"}, "k"),
    ("/recommend", {"users": [1], "k": 0}, "k"),
    ("/recommend", {"users": [1], "exclude_seen": 1}, "exclude_seen"),
    ("/recommend", {"users": [1], "score": "nope"}, "watch"),
    ("/recommend", {"users": [1], "where": ["nope=1"]}, "nope"),
    ("/recommend", {"users": [1] * 17}, "16"),
]


@pytest.mark.parametrize(("path", "body", "part"), BAD)
def test_a_body_that_breaks_a_rule_is_422_and_names_it(
    caller: Caller, path: str, body: Any, part: str
) -> None:
    answer = caller.post(path, body)
    assert answer.status_code == 422
    assert list(answer.json()) == ["error"]
    assert part in answer.json()["error"]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"users": [NaN], "items": [1]}', 422),
        (b'{"users": [Infinity], "items": [1]}', 422),
        (b'{"users": [1e999], "items": [1]}', 422),
        (b'{"users": [' + b"9" * 5000 + b'], "items": [1]}', 400),
        (b'{"users": ["\\ud800"], "items": [1]}', 400),
        (b"[" * 100_000, 400),
        (b'{"users": [1', 400),
        (b"\xff\xfe", 400),
        (b"", 400),
        (b" " * (1 << 20) + b"{}", 413),
    ],
)
def test_bytes_that_are_no_request_are_refused(caller: Caller, content: bytes, status: int) -> None:
    headers = {"content-type": "application/json"}
    answer = caller("POST", "/predict", content=content, headers=headers)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])


def test_broken_json_says_where_it_ends_and_what_to_send(caller: Caller) -> None:
    headers = {"content-type": "application/json"}
    answer = caller("POST", "/predict", content=b'{"users": [1', headers=headers)
    assert "column 12; send a JSON object" in answer.json()["error"]


def test_a_chunked_body_is_cut_off_at_the_limit(run: Path) -> None:
    async def chunks() -> Any:
        for _ in range(100):
            yield b"          "

    caller = Caller(run, Limits(max_body=500))
    headers = {"content-type": "application/json"}
    answer = caller("POST", "/predict", content=chunks(), headers=headers)
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "kind", ["text/plain", "multipart/form-data", "application/x-www-form-urlencoded", ""]
)
def test_another_content_type_which_a_form_of_another_page_could_send_is_415(
    caller: Caller, kind: str
) -> None:
    headers = {"content-type": kind}
    assert caller("POST", "/predict", content=json.dumps(PAIR), headers=headers).status_code == 415


def test_unknown_paths_and_methods_have_the_same_shape(caller: Caller) -> None:
    for method, path, status in [("GET", "/nope", 404), ("GET", "/predict", 405)]:
        answer = caller(method, path)
        assert (answer.status_code, list(answer.json())) == (status, ["error"])


def test_a_key_guards_all_but_health(run: Path) -> None:
    caller = Caller(run, key=KEY)
    assert caller.post("/predict", PAIR).status_code == 401
    assert caller("GET", "/metrics").status_code == 401
    keys = ("", KEY[:1], KEY[:-1], KEY[:-1] + "x", KEY[1:], KEY.upper(), f"{KEY}x")
    for wrong in (*(f"Bearer {key}" for key in keys), f"Basic {KEY}", KEY, ""):
        assert caller.post("/predict", PAIR, headers={"Authorization": wrong}).status_code == 401
    right = {"Authorization": f"Bearer {KEY}"}
    assert caller.post("/predict", PAIR, headers=right).status_code == 200
    assert caller("GET", "/healthz").status_code == caller("GET", "/readyz").status_code == 200


def test_the_document_names_the_limits_and_every_fault(caller: Caller) -> None:
    paths = caller("GET", "/openapi.json").json()["paths"]
    assert set(paths) == {
        *("/predict", "/recommend", "/explain", "/similar", "/seen", "/events"),
        *("/model", "/metrics", "/healthz", "/readyz"),
    }
    asked = paths["/predict"]["post"]
    body = asked["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["users"]["maxItems"] == 10_000
    assert {"200", "400", "413", "415", "422", "429", "504"} <= set(asked["responses"])


def test_ids_that_javascript_would_round_are_returned_as_text() -> None:
    """2**53 + 1 reads as 2**53 there; the text is the same id to us."""
    ids = [2**53 + 1, 2**53 - 1, -(2**53), 7, "x"]
    assert [exact(raw) for raw in ids] == [str(2**53 + 1), 2**53 - 1, str(-(2**53)), 7, "x"]
    entry = Recommendation(1, 2**60, None, {"watch": 0.5})
    assert RankedItem(**vars(entry), columns={"n": 2**60}).item == str(2**60)
