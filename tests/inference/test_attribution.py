"""What moved a score: features, items of the history, ids, each left out in turn."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recsys_moe.artifact.bags import rows_of
from recsys_moe.errors import ConfigError
from recsys_moe.inference.attribution import features as features_module
from recsys_moe.inference.attribution.features import Attributor
from recsys_moe.inference.predictor import Attribution, ColdUser, Predictor
from recsys_moe.model.request import Request
from tests.conftest import Command, tells
from tests.inference.test_cold_start import history_of


@pytest.fixture(scope="module")
def predictor(featured_run: Path) -> Predictor:
    return Predictor.load(featured_run)


def logits(predictor: Predictor, users: Any, items: Any) -> Tensor:
    """(B, T)"""
    return predictor._pair_scores.logits(*predictor._pairs(users, items))


def by_part(attributions: list[Attribution]) -> dict[tuple[Any, ...], float]:
    return {(r.kind, r.entity, r.name, r.value): r.contribution for r in attributions}


def test_a_contribution_is_the_logit_minus_that_of_one_without_that_part(
    predictor: Predictor,
) -> None:
    """A cold-start user with a feature less is scored by the ordinary way of cold-start users; of
    two genres the one that stays has the weight 1 / sqrt(2) that it has beside the other: an
    unseen one's place counts too. So does K / sqrt(3) of a history, which is compared as a
    whole."""
    features, history = {"age": 45, "job": "job 2"}, {3: 5.0, 4: 2.0, 9: None}
    film = {"genres": "genre 1|genre 3", "year": 2000.0}
    user, item = ColdUser(features, history), ColdUser(film)
    less = {
        ("feature", "user", "age", 45.0): (ColdUser({"job": "job 2"}, history), item),
        ("feature", "user", "job", "job 2"): (ColdUser({"age": 45}, history), item),
        ("history", "user", None, None): (ColdUser(features), item),
        ("feature", "item", "year", 2000.0): (user, ColdUser({"genres": film["genres"]})),
        ("feature", "item", "genres", "genre 1"): (
            user,
            ColdUser({"genres": "genre 3|opera", "year": 2000.0}),
        ),
    }
    [of_pair] = predictor.attributions([user], [item])
    users, items = zip((user, item), *less.values(), strict=True)
    logits_BT = logits(predictor, list(users), list(items))
    for task, (_, attributions) in enumerate(of_pair.items()):
        found = by_part(attributions)
        expected_V = (logits_BT[0] - logits_BT[1:])[:, task].tolist()
        for part, expected in zip(less, expected_V, strict=True):
            assert found[part] == pytest.approx(expected, abs=1e-5), part
        assert not any(kind == "id" for kind, *_ in found)
        assert {value for kind, _, _, value in found if kind == "item"} == {3, 4, 9}
        sizes = [abs(attribution.contribution) for attribution in attributions]
        assert sizes == sorted(sizes, reverse=True)


@torch.no_grad()
def test_an_item_of_the_history_is_left_out_of_a_known_user_with_the_factor_kept(
    predictor: Predictor, featured: Path
) -> None:
    """logit(x_u) - logit(x_u - K y_j / sqrt(n)), by hand in the table of a model of its own."""
    user, item, parts = 3, 7, predictor.artifact.encoders
    history = history_of(predictor, featured, user)
    ids = predictor.items.ids.to_pylist()
    raw_user = predictor.users.ids[user].as_py()
    [of_pair] = predictor.attributions([raw_user], [ids[item]], most=1000)
    model = predictor.artifact.model
    index_B = Request(torch.tensor([user]), torch.tensor([item]))
    before_T, vector_D = model(index_B).logits_BT[0], model.user_embedding.weight[user].clone()
    found = {r.value: r for r in of_pair["rating"] if r.kind == "item"}
    assert {value: one.rating for value, one in found.items()} == history
    assert len(history) > 3
    try:
        for raw, rating in [*history.items()][:4]:
            row = (5 if rating is None else round(rating) - 1) * 40 + ids.index(raw)
            added_D = parts["item_bag.kernel_DW"] @ parts["item_bag.table_RW"][row]
            model.user_embedding.weight[user] = vector_D - added_D / len(history) ** 0.5
            change = before_T[1] - model(index_B).logits_BT[0, 1]
            assert found[raw].contribution == pytest.approx(change.item(), abs=1e-6)
    finally:
        model.user_embedding.weight[user] = vector_D


@torch.no_grad()
def test_the_users_of_an_item_are_left_out_together(predictor: Predictor) -> None:
    """logit(x_i) - logit(x_i - K sum_u y_u / sqrt(n)); nobody of them is named."""
    user, item, artifact = 3, 7, predictor.artifact
    raw_user, raw_item = predictor.users.ids[user].as_py(), predictor.items.ids[item].as_py()
    [of_pair] = predictor.attributions([raw_user], [raw_item], most=1000)
    [found] = [r for r in of_pair["rating"] if (r.kind, r.entity) == ("history", "item")]
    mine_P = rows_of(artifact.history, "item", item)
    watched = artifact.seen["items"] == item
    assert len(mine_P) == int(watched.sum()) > 3
    y_PW, kernel_DW = (artifact.encoders[f"user_bag.{n}"] for n in ("table_RW", "kernel_DW"))
    table_ND = artifact.model.item_embedding.weight
    index_B, before_D = Request(torch.tensor([user]), torch.tensor([item])), table_ND[item].clone()
    before = artifact.model(index_B).logits_BT[0, 1]
    try:
        table_ND[item] -= kernel_DW @ y_PW[mine_P].sum(0) / len(mine_P) ** 0.5
        change = before - artifact.model(index_B).logits_BT[0, 1]
    finally:
        table_ND[item] = before_D
    assert found.contribution == pytest.approx(change.item(), abs=1e-6)
    assert found.words.endswith("the users who interacted with this item")
    assert not any(r.kind == "item" and r.entity == "item" for r in of_pair["rating"])


def test_without_the_id_a_known_user_is_a_cold_user_with_the_same_data(
    predictor: Predictor, featured: Path
) -> None:
    user, raw = 4, predictor.users.ids[4].as_py()  # age 50, and a job that training has seen
    given = ColdUser({"age": 40.0, "job": "job 0"}, history_of(predictor, featured, user))
    [of_pair] = predictor.attributions([raw], [1])
    logits_BT = logits(predictor, [raw, given], [1, 1])
    for task, attributions in enumerate(of_pair.values()):
        [own] = [r for r in attributions if (r.kind, r.entity) == ("id", "user")]
        change = (logits_BT[0] - logits_BT[1])[task].item()
        assert own.contribution == pytest.approx(change, abs=1e-5)
        assert own.words == "this user itself"


def test_the_words_are_those_of_a_page(predictor: Predictor) -> None:
    def words(sign: int, **known: Any) -> str:
        empty = {"name": None, "value": None, "title": None, "rating": None, "entity": "user"}
        return Attribution(contribution=sign, **{**empty, **known}).words  # type: ignore[arg-type]

    film = {"kind": "item", "value": 50, "title": "Star Wars (1977)", "rating": 5.0}
    assert words(1, **film) == "because the user interacted with Star Wars (1977) (rated 5)"
    assert words(-1, **film) == "although the user interacted with Star Wars (1977) (rated 5)"
    assert words(1, kind="item", value=50) == "because the user interacted with item 50"
    assert words(1, kind="feature", name="genres", value="Comedy") == "genres=Comedy"
    assert words(1, kind="feature", name="year", value=1995.0) == "year=1995"
    unseen = words(1, kind="feature", name="job", value=None)
    assert unseen == "job=unknown category"
    assert words(-1, kind="history") == "despite the whole history"


def test_of_a_long_history_those_with_the_largest_first_order_change_are_left_out(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This model has one path through it where a change is as small as this: first order is exact
    to the third digit, and chooses what leaving all out would have."""
    items = predictor.items.ids.to_pylist()
    user = ColdUser({"age": 20}, {raw: 1.0 + n % 5 for n, raw in enumerate(items)})
    [every] = predictor.attributions([user], [items[0]], most=3)
    monkeypatch.setattr(features_module, "MOST_LEFT_OUT", 16)
    [some] = predictor.attributions([user], [items[0]], most=3)
    for task, attributions in every.items():
        whole, part = by_part(attributions), by_part(some[task])
        assert part == pytest.approx(whole, abs=1e-6)


def test_a_history_of_a_hundred_thousand_entries_takes_no_time(predictor: Predictor) -> None:
    user = ColdUser(history=predictor.items.ids.to_pylist() * 2500)
    started = time.monotonic()
    [of_pair] = predictor.attributions([user], [1])
    assert time.monotonic() - started < 10
    assert sum(r.kind == "item" for r in of_pair["watch"]) == 5


def test_unknown_ids_have_no_attributions(predictor: Predictor) -> None:
    [of_pair] = predictor.attributions(["nobody"], ["nothing"])
    assert of_pair == {"watch": [], "rating": []}


def test_models_without_attributions_say_why(
    predictor: Predictor, run: Path, featured_run: Path, tmp_path: Path
) -> None:
    of_ids = Predictor.load(run)
    assert "ids only" in (of_ids.no_attributions or "")
    with pytest.raises(ConfigError, match="attributions are not available: .*ids only"):
        of_ids.attributions([1], [1])
    old = Path(shutil.copytree(featured_run / "model", tmp_path / "old"))
    (old / "history.safetensors").unlink()
    manifest = json.loads((old / "manifest.json").read_text())
    del manifest["files"]["history.safetensors"]
    (old / "manifest.json").write_text(json.dumps(manifest))
    before = Predictor.load(old)
    assert before.score([1], [1]).tasks.keys() == {"watch", "rating"}
    assert "histories" in (before.no_attributions or "")
    rivals = Attributor(predictor.artifact, predictor.cold_users, independent=False)
    assert "assigns rows jointly" in (rivals.none_because or "")


def test_recommend_says_why(command: Command, featured_run: Path, run: Path) -> None:
    words = ("recommend", featured_run, "--user", 1, "--k", 2, "--why")
    predictor = Predictor.load(featured_run)
    items = json.loads(command(*words, "--json").out)["items"]
    expected = predictor.attributions([1, 1], [entry["item"] for entry in items], 3)
    for entry, of_pair in zip(items, expected, strict=True):
        assert entry["why"].keys() == of_pair.keys() == {"watch", "rating"}
        for task, attributions in of_pair.items():
            assert entry["why"][task] == [attribution.as_object() for attribution in attributions]
    text = command(*words).out.splitlines()
    of_first = [
        f"{task} {r.contribution:+.3f}  {r.words}" for task, rs in expected[0].items() for r in rs
    ]
    assert [line.strip() for line in text[2 : 2 + len(of_first)]] == of_first
    given = ("--history", "3=5,4", "--features", "age=45", "--k", 1, "--why", "--json")
    [entry] = json.loads(command("recommend", featured_run, *given).out)["items"]
    found = {(r["kind"], r["value"]) for r in entry["why"]["rating"]}
    assert {("item", 3), ("item", 4), ("feature", 45.0), ("history", None)} <= found
    error = command.fails(2, "recommend", run, "--user", 1, "--why")
    assert tells(error, "--why ... ids only")
    many = ("--users", "users.csv", "--output", "lists.csv", "--why")
    assert "--why needs a single user" in command.fails(2, "recommend", featured_run, *many)
