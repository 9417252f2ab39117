"""Lists in two stages: the bilinear term retrieves, the whole model ranks."""

from __future__ import annotations

import json
import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError
from recsys_moe.inference.evaluation.ranking import evaluate_ranking
from recsys_moe.inference.predictor import ColdUser, Predictor, Recommendation
from recsys_moe.inference.ranking import retrieval
from recsys_moe.inference.ranking.retrieval import ItemIndex, largest_products
from recsys_moe.train.fit import fit
from tests.conftest import Command, tells

ITEMS, USERS = 40, [*range(1, 11)]
Lists = list[list[Recommendation]]
NO_FAISS = 'needs faiss-cpu: pip install "recsys-moe[ann]"'


@pytest.fixture(scope="module")
def predictor(bilinear_run: Path) -> Predictor:
    return Predictor.load(bilinear_run)


def items(lists: Lists) -> list[list[Any]]:
    return [[entry.item for entry in ranked] for ranked in lists]


def assert_same(lists: Lists, exact: Lists) -> None:
    assert items(lists) == items(exact)
    for ours, theirs in zip(lists, exact, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert one.scores == pytest.approx(other.scores, abs=1e-5)


@pytest.mark.parametrize("count", [ITEMS, 10**6])
def test_lists_that_retrieve_every_item_are_the_exact_ones(
    predictor: Predictor, count: int
) -> None:
    assert predictor.recommend(USERS, 7, retrieve=count) == predictor.recommend(USERS, 7)


@pytest.mark.parametrize("name", ["watch", "rating"])
def test_the_whole_model_ranks_what_is_retrieved(predictor: Predictor, name: str) -> None:
    """Without the one item with the least product, lists lack nothing but that item."""
    options: dict[str, Any] = {"score": name, "exclude_seen": True}
    exact = predictor.recommend(USERS, ITEMS, **options)
    for user, all_but_one in zip(USERS, exact, strict=True):
        [found] = predictor.recommend([user], len(all_but_one) - 1, retrieve=ITEMS - 1, **options)
        left = [entry for entry in all_but_one if entry.item in {one.item for one in found}]
        assert len(found) == len(all_but_one) - 1
        assert [one.item for one in found] == [one.item for one in left]


def test_seen_items_take_no_place(predictor: Predictor) -> None:
    for user in USERS:
        [whole] = items(predictor.recommend([user], ITEMS))
        seen = {*whole}.difference(*items(predictor.recommend([user], ITEMS, exclude_seen=True)))
        assert seen
        [found] = predictor.recommend([user], 10, exclude_seen=True, retrieve=10)
        assert len(found) == 10 and not seen & {entry.item for entry in found}


def test_a_two_tower_loses_nothing(prepared: Path, tmp_path: Path) -> None:
    """Its logit is the product and the biases, so the first stage ranks as the model does."""
    model = {"name": "two_tower", "embedding_dim": 8, "rank": 4, "biases": True}
    config = {"model": model, "data": {"list_prior": 0.5}, "trainer": {"max_epochs": 1}}
    fit(parse_config(config), prepared, tmp_path / "run")
    predictor = Predictor.load(tmp_path / "run")
    for options in ({}, {"exclude_seen": True}, {"score": "rating"}, {"where": ["item>12"]}):
        exact = predictor.recommend(USERS, 5, **options)
        assert_same(predictor.recommend(USERS, 5, retrieve=5, **options), exact)


def test_new_users_filters_and_events_go_through_both_stages(
    featured_run: Path, sequence_run: Path, prepared: Path
) -> None:
    with pytest.raises(ConfigError, match="bilinear"):
        Predictor.load(featured_run).recommend([1], retrieve=20)
    predictor = Predictor.load(sequence_run)
    size = predictor.items.feature.size
    ids = predictor.items.ids.to_pylist()
    users = [predictor.users.ids.to_pylist()[0], ColdUser()]
    events = [{"item": ids[3], "time": 1.9e9}, {"item": ids[5], "time": 1.9e9 + 60}]
    exact = predictor.recommend(users, 5, events=events, exclude_seen=True)
    found = predictor.recommend(users, 5, events=events, exclude_seen=True, retrieve=size - 1)
    assert_same(found, exact)
    some = predictor.recommend(users, 5, candidates=ids[:10], retrieve=6)
    assert all(entry.item in ids[:10] for ranked in some for entry in ranked)
    assert [len(ranked) for ranked in some] == [5, 5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "watch*rating"}, "one task as score, got watch*rating; pass --score watch"),
        ({"retrieve": 9}, "must be at least 10, the length of a list, got 9; pass e.g. 100"),
    ],
)
def test_what_cannot_have_two_stages_says_so(
    predictor: Predictor, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        predictor.recommend(USERS, 10, **{"retrieve": 20, **options})
    assert tells(str(caught.value), message)


@pytest.mark.parametrize("wrong", [0, 1.5, "many"])
def test_a_count_that_is_none_is_a_value_error(predictor: Predictor, wrong: Any) -> None:
    with pytest.raises(ValueError, match="retrieve must be a whole number of at least 1"):
        predictor.recommend(USERS, 1, retrieve=wrong)


def test_the_commands_refuse_models_without_the_term(
    run: Path, command: Command, tmp_path: Path
) -> None:
    said = command.fails(2, "recommend", run, "--user", 1, "--retrieve", 20)
    assert tells(said, "--retrieve needs ... bilinear term ... omit it, or train with model.bilin")
    said = command.fails(2, "evaluate", run, "--ranking", "--retrieve", 20)
    assert tells(said, "--retrieve needs ... bilinear term")
    said = command.fails(2, "evaluate", run, "--retrieve", 20)
    assert tells(said, "--retrieve needs --ranking")


def test_without_the_package_the_error_names_the_extra(
    bilinear_run: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrieval, "EXACT_ITEMS", ITEMS - 1)
    monkeypatch.setitem(sys.modules, "faiss", None)
    said = command.fails(2, "recommend", bilinear_run, "--user", 1, "--retrieve", 20)
    assert NO_FAISS in said


def test_evaluation_measures_what_two_stages_cost(bilinear_run: Path, command: Command) -> None:
    exact = evaluate_ranking(bilinear_run, "test", k=3)
    assert evaluate_ranking(bilinear_run, "test", k=3, retrieve=ITEMS) == exact | {
        "retrieve": ITEMS
    }
    few = evaluate_ranking(bilinear_run, "test", k=3, retrieve=3)
    assert few["users"] == exact["users"] and few["gauc"] == exact["gauc"]
    before = (bilinear_run / "evaluation" / "test.json").exists()
    words = ["evaluate", bilinear_run, "--ranking", "--k", 3, "--retrieve", 5]
    assert "5 of 40 items ranked" in command(*words).out
    assert json.loads(command(*words, "--json").out)["ranking"]["retrieve"] == 5
    assert (bilinear_run / "evaluation" / "test.json").exists() == before


def test_a_file_of_users_is_ranked_in_two_stages(
    predictor: Predictor, bilinear_run: Path, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "users.txt").write_text("1\n2\nnobody\n")
    out = tmp_path / "lists.jsonl"
    words = ["recommend", bilinear_run, "--users", tmp_path / "users.txt", "--output", out]
    command(*words, "--k", 4, "--retrieve", 12)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    again = predictor.recommend([1, 2, "nobody"], 4, retrieve=12)
    assert [[entry["item"] for entry in one["items"]] for one in found] == items(again)


def clusters(items: int, users: int, width: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors of users and of items with tastes in common, and with popularity."""
    generator = torch.Generator().manual_seed(0)
    taste_CR = torch.randn(20, width, generator=generator)
    group_N = torch.randint(20, (items,), generator=generator)
    item_NR = taste_CR[group_N] + 0.5 * torch.randn(items, width, generator=generator)
    item_NR[:, -1] = torch.randn(items, generator=generator)
    user_UR = taste_CR[torch.randint(20, (users,), generator=generator)].clone()
    user_UR += 0.5 * torch.randn(users, width, generator=generator)
    user_UR[:, -1] = 1.0
    return user_UR, item_NR


@given(st.integers(0, 50), st.integers(1, 30), st.integers(0, 20))
def test_exact_products_are_the_definition(seed: int, count: int, excluded: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    item_N = torch.randperm(50, generator=generator)[:25].sort().values
    user_UR, item_NR = (
        torch.randn(3, 4, generator=generator),
        torch.randn(25, 4, generator=generator),
    )
    out = [torch.randperm(50, generator=generator)[:excluded] for _ in range(3)]
    found = largest_products(user_UR, item_NR, item_N, count, out)
    for user_R, out_S, item_C in zip(user_UR, out, found, strict=True):
        value = {int(i): float(v @ user_R) for i, v in zip(item_N, item_NR, strict=True)}
        left = sorted(value.keys() - set(out_S.tolist()), key=lambda i: -value[i])[:count]
        least = min((value[i] for i in left), default=0.0)
        assert item_C.tolist() == sorted(item_C.tolist()) and len(item_C) == len(left)
        assert all(value[i] >= least - 1e-5 for i in item_C.tolist())


class TestIndex:
    """Of faiss, an optional package."""

    @pytest.fixture(autouse=True)
    def _faiss(self) -> None:
        pytest.importorskip("faiss", reason='needs faiss-cpu: pip install "recsys-moe[ann]"')

    @pytest.mark.parametrize("filtered", [False, True])
    def test_it_finds_what_all_inner_products_find(self, filtered: bool) -> None:
        user_UR, item_NR = clusters(30_000, 50)
        item_N, out = torch.arange(30_000), [torch.arange(u, 30_000, 3) for u in range(50)]
        index, shares = ItemIndex(item_NR), []
        some_N = item_N[:: 4 if filtered else 1]
        exact = largest_products(user_UR, item_NR[some_N], some_N, 100, out)
        found = index.search(user_UR, some_N, 100, out)
        for one, other, out_S in zip(found, exact, out, strict=True):
            assert len(one) == 100 and torch.equal(one, one.unique())
            assert torch.isin(one, some_N).all() and not torch.isin(one, out_S).any()
            shares.append(float(torch.isin(one, other).float().mean()))
        assert sum(shares) / len(shares) > 0.95

    def test_all_items_are_found_where_all_are_asked_for(self) -> None:
        user_UR, item_NR = clusters(200, 3)
        nothing = [torch.empty(0, dtype=torch.long)] * 3
        for some_N in (torch.arange(200), torch.arange(3, 200, 7)):
            for item_C in ItemIndex(item_NR).search(user_UR, some_N, 200, nothing):
                assert torch.equal(item_C, some_N)

    def test_the_same_items_give_the_same_answers_from_any_thread(self) -> None:
        user_UR, item_NR = clusters(5000, 40)
        nothing = [torch.empty(0, dtype=torch.long)]
        first, second = ItemIndex(item_NR), ItemIndex(item_NR)
        asked = torch.arange(5000), 60, nothing
        alone = [first.search(row_R[None], *asked)[0].tolist() for row_R in user_UR]
        with ThreadPoolExecutor(4) as pool:
            again = pool.map(lambda row_R: second.search(row_R[None], *asked)[0], user_UR)
            assert [item_C.tolist() for item_C in again] == alone

    def test_lists_of_an_index_are_those_of_all_products_and_it_is_built_once(
        self,
        bilinear_run: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """An index of 40 items has 12 lists and visits 64 of them: all."""
        caplog.set_level(logging.INFO, "recsys_moe")
        predictor = Predictor.load(bilinear_run)
        whole = predictor.recommend(USERS, 5, exclude_seen=True, retrieve=9)
        monkeypatch.setattr(retrieval, "EXACT_ITEMS", ITEMS - 1)
        with ThreadPoolExecutor(4) as pool:
            found = pool.map(
                lambda user: predictor.recommend([user], 5, exclude_seen=True, retrieve=9)[0],
                USERS,
            )
            assert_same([*found], whole)
        assert caplog.text.count("index of 40 items: 12 lists, 0 MB, built in") == 1
