"""Users and items that training has not seen: their vectors, their scores, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from recsys_moe.config.settings import parse_config
from recsys_moe.data.columns import load_columns
from recsys_moe.errors import DataError
from recsys_moe.inference.predictor import ColdItem, ColdUser, Predictor, Recommendation
from recsys_moe.model.request import of_items, of_users
from recsys_moe.schema import Schema
from recsys_moe.train.fit import fit
from tests.conftest import TINY_MODEL
from tests.features import GENRES, JOB


@pytest.fixture(scope="module")
def predictor(featured_run: Path) -> Predictor:
    return Predictor.load(featured_run)


def history_of(predictor: Predictor, featured: Path, user: int) -> dict[Any, float | None]:
    """Raw items that the user watched in training, with ratings where there are."""
    rows = load_columns(featured, Schema.load(featured), "train")
    ids = predictor.items.ids.to_pylist()
    columns = zip(rows.user.tolist(), rows.item.tolist(), rows.labels.tolist(), strict=True)
    return {
        ids[item]: None if rating != rating else rating
        for one, item, (watched, rating) in columns
        if one == user and (watched == 1 or rating == rating)
    }


def vectors(predictor: Predictor, users: list[ColdUser], items: list[ColdUser]) -> Any:
    """Without the row of the OOV id."""
    parts = predictor.resolve(users).parts, predictor.resolve(items, entity="item").parts
    given = predictor.cold_users.encoder(*parts)
    assert given is not None
    user_B, item_B = ~torch.arange(len(users)), ~torch.arange(len(items))
    return given("user", of_users(user_B)), given("item", of_items(item_B))


def test_a_vector_is_the_sum_that_the_page_on_features_says(
    predictor: Predictor, featured_run: Path
) -> None:
    """age 45: 1.5 deviations; two genres: each over sqrt(2); three items: K sum / sqrt(3)."""
    parts = load_file(featured_run / "model" / "encoders.safetensors")
    ids = predictor.items.ids.to_pylist()
    levels = Schema.load(featured_run / "model").labels["train"]["rating"]
    level = round((levels["max"] - levels["min"]) / (levels["max"] - levels["min"]) * 4)
    given = ColdUser(
        {"age": 45, "job": "job 2"}, {ids[3]: levels["max"], ids[5]: None, ids[9]: None}
    )
    item = ColdUser({"genres": "genre 1|genre 3"})
    user_UD, item_UD = vectors(predictor, [given], [item])
    rows = parts["item_bag.table_RW"].view(6, 40, 4)  # 5 levels and none, items, width
    pool = (rows[level, 3] + rows[5, 5] + rows[5, 9]) / 3**0.5
    table = parts["users.table_RD"]  # age, then 3 jobs and an unseen one
    expected = 1.5 * table[0] + table[1 + 2] + parts["item_bag.kernel_DW"] @ pool
    torch.testing.assert_close(user_UD[0], expected, atol=1e-6, rtol=0)
    table = parts["items.table_RD"]  # 4 genres and an unseen one, then the year
    torch.testing.assert_close(item_UD[0], (table[1] + table[3]) / 2**0.5, atol=1e-6, rtol=0)
    assert (JOB.size, GENRES.size) == (3, 4)


def test_cold_users_are_ranked_and_scored_next_to_known_users(predictor: Predictor) -> None:
    users, items = predictor.users.ids.to_pylist(), predictor.items.ids.to_pylist()
    new = ColdUser({"age": 20, "job": "job 1"}, items[:5])
    whom = [users[3], new, "nobody", ColdUser(history={items[7]: 3.0}), users[4]]
    lists = predictor.recommend(whom, 40, score="rating")
    for one, ranked in zip(whom, lists, strict=True):
        scores = predictor.score([one] * 40, [entry.item for entry in ranked])
        for task, score_B in scores.tasks.items():
            shown = torch.tensor([entry.scores[task] for entry in ranked])
            torch.testing.assert_close(score_B, shown, atol=1e-5, rtol=0)
        assert scores.unseen_user.tolist() == [one not in users] * 40
    known = predictor.recommend([users[3]], 40, score="rating")[0]
    assert [entry.item for entry in lists[0]] == [entry.item for entry in known]
    assert lists[2] != lists[1] != lists[3]
    [alone] = predictor.recommend(features=new.features, history=new.history, k=40, score="rating")
    assert [entry.item for entry in lists[1]] == [entry.item for entry in alone]
    [rest] = predictor.recommend(history=items[:5], k=40, exclude_seen=True)
    assert {entry.item for entry in rest} == {*items[5:]}


def test_what_is_resolved_is_not_read_again_and_goes_wherever_ids_go(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = predictor.items.ids.to_pylist()
    whom = [1, ColdUser({"job": "astronaut"}, items[:3]), "nobody"]
    scores, lists = predictor.score(whom, items[:3]).tasks, predictor.recommend(whom, 5)
    users, named = predictor.resolve(whom), predictor.resolve(items[:3], entity="item")
    assert [one.categories for one in users.unused] == [{"job": ["astronaut"]}]
    for entry in (predictor.users, predictor.items, predictor.cold_users):
        for name in {"index", "read"} & {*dir(entry)}:
            monkeypatch.setattr(entry, name, None)
    torch.testing.assert_close(predictor.score(users, named).tasks, scores, rtol=0, atol=0)
    assert predictor.recommend(users, 5) == lists
    assert [entry.index for entry in lists[0]] == [items.index(entry.item) for entry in lists[0]]
    assert predictor.are_unseen_users(users) == [False, True, True]
    for among in predictor.recommend(users, 9, candidates=named):
        assert {entry.item for entry in among} == {*items[:3]}


def test_a_new_item_is_scored_by_its_features(predictor: Predictor) -> None:
    user = predictor.users.ids[0].as_py()
    new = [ColdItem({"genres": ["genre 1"]}), ColdItem({"genres": ["genre 2"]}), ColdItem()]
    scores = predictor.score([user] * 4, [*new, "unknown"])
    one, two, bare, unknown = scores.tasks["rating"].tolist()
    assert scores.unseen_item.all() and one != two != bare
    assert bare == pytest.approx(unknown, abs=1e-6)
    assert predictor.explain([user], new[:1])[0]["watch"]


def same(one: list[Recommendation], other: list[Recommendation]) -> bool:
    """The same items with the same scores, within rounding."""
    scores, others = ([[*entry.scores.values()] for entry in ranked] for ranked in (one, other))
    items = [[entry.item for entry in ranked] for ranked in (one, other)]
    return items[0] == items[1] and torch.allclose(torch.tensor(scores), torch.tensor(others))


def test_an_empty_cold_user_is_an_unknown_id(predictor: Predictor) -> None:
    [bare, unknown] = predictor.recommend([ColdUser(), "nobody"], 5)
    assert same(bare, unknown)


def test_what_training_has_not_seen_adds_nothing_and_is_named(predictor: Predictor) -> None:
    items = predictor.items.ids.to_pylist()
    new = ColdUser({"job": "astronaut", "age": None}, ["what?", items[2], "who?"])
    unused = predictor.unused(new)
    assert unused.categories == {"job": ["astronaut"]} and unused.items == ["what?", "who?"]
    plain = ColdUser(history=[items[2]])
    assert torch.equal(*vectors(predictor, [new, plain], [])[0])
    item = ColdUser({"genres": ["genre 1", "opera", "jazz", "genre 1"]})
    assert predictor.unused(item, entity="item").categories == {"genres": ["opera", "jazz"]}
    table = predictor.artifact.encoders["items.table_RD"]
    given = vectors(predictor, [], [item])[1][0]
    torch.testing.assert_close(given, table[1] / 2**0.5)  # of two: genre 1 and what is unseen


def test_a_model_of_ids_refuses_features_and_histories(run: Path) -> None:
    of_ids = Predictor.load(run)
    with pytest.raises(DataError, match="no user features, got 'age'"):
        of_ids.recommend(features={"age": 3})
    with pytest.raises(DataError, match="no histories"):
        of_ids.recommend(history=[1])
    assert same(*of_ids.recommend([ColdUser(), "nobody"], 3))


@pytest.mark.parametrize("router", ["hash", "expert_choice", "sparsemixer"])
def test_cold_users_are_unknown_to_a_router_that_looks_at_users_or_at_other_rows(
    router: str, featured: Path, tmp_path: Path
) -> None:
    model = {**TINY_MODEL, "features": "all", "item_bag": "items", "router": {"name": router}}
    trainer = {"max_epochs": 1, "batch_size": 256}
    fit(parse_config({"model": model, "trainer": trainer}), featured, tmp_path / "run")
    predictor = Predictor.load(tmp_path / "run")
    items = predictor.items.ids.to_pylist()
    new = ColdUser({"job": "job 1"}, items[:3])
    [ranked, bare, nobody] = predictor.recommend([new, ColdUser(), "nobody"], 40)
    assert same(bare, nobody)
    by_item = {entry.item: entry.scores["watch"] for entry in ranked}
    scores = predictor.score([new] * 40, items).tasks["watch"]  # together, as in a ranking
    assert [by_item[item] for item in items] == pytest.approx(scores.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("features", "history", "message"),
    [
        ({"agee": 3}, (), "'agee'; .*'age'"),
        *(({"age": age}, (), "'age' .*got ") for age in ("old", float("inf"), 1e39, [3])),
        *(({"job": job}, (), "'job' .*got ") for job in (1.5, ["a", "b"])),
        *(({}, {1: rating}, "rating of item 1 .*1..5") for rating in (99, float("inf"), "5", True)),
    ],
)
def test_invalid_features_and_ratings_are_refused(
    features: dict[str, Any], history: Any, message: str, predictor: Predictor
) -> None:
    with pytest.raises(DataError, match=message):
        predictor.recommend(features=features, history=history)


def test_users_and_items_that_are_not_what_they_must_be_are_refused(predictor: Predictor) -> None:
    for genres in ("genre 1||genre 2", ["genre 1", ""], ["genre 1", None], "|"):
        with pytest.raises(DataError, match="feature 'genres' must be categories.*none empty"):
            predictor.score([ColdUser()], [ColdItem({"genres": genres})])
    with pytest.raises(DataError, match="got a ColdItem"):
        predictor.score([ColdItem({"age": 3})], [1])
    with pytest.raises(DataError, match="item has no history"):
        predictor.score([1], [ColdUser(history=[1])])
