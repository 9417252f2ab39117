"""Rankings are judged exactly: equal to loops over users, to trec_eval and to scikit-learn.

Axes: U users, K ranks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from recsys_moe.data.streaming import Labelled
from recsys_moe.inference.evaluation import ranking_metrics
from recsys_moe.inference.evaluation.ranking import evaluate_ranking, top_lists
from recsys_moe.inference.evaluation.ranking_metrics import list_metrics
from recsys_moe.inference.evaluation.ranking_pairs import relevant_pairs
from recsys_moe.inference.evaluation.ranking_report import NONE, described
from recsys_moe.inference.evaluation.ranking_rows import RankingRows
from recsys_moe.inference.evaluation.ranking_wanted import Pairs
from recsys_moe.inference.predictor import Predictor
from recsys_moe.kinds.curves import auc_per_user
from recsys_moe.schema import Schema

LISTS = ("ndcg", "recall", "mrr", "hit_rate")


@given(st.data())
def test_lists_are_judged_as_trec_eval_does(data: st.DataObject) -> None:
    import pytrec_eval as trec

    users, items, k = (data.draw(st.integers(1, most)) for most in (6, 12, 15))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    lists = [rng.permutation(items)[:k].tolist() for _ in range(users)]
    relevant = [set(rng.permutation(items)[: rng.integers(1, items + 1)].tolist()) for _ in lists]
    hit_UK = torch.zeros(users, k, dtype=torch.bool)
    for user, ranked in enumerate(lists):
        hit_UK[user, : len(ranked)] = torch.tensor([item in relevant[user] for item in ranked])
    found = list_metrics(hit_UK, torch.tensor([len(items) for items in relevant]))
    truth = {str(u): {str(i): 1 for i in items} for u, items in enumerate(relevant)}
    scores = {
        str(u): {str(i): float(-rank) for rank, i in enumerate(ranked)}
        for u, ranked in enumerate(lists)
    }
    names = dict(zip(LISTS, ("ndcg_cut", "recall", "recip_rank", "success"), strict=True))
    measures = {f"{name}.{k}" if name != "recip_rank" else name for name in names.values()}
    judged = trec.RelevanceEvaluator(truth, measures).evaluate(scores)
    for ours, theirs in names.items():
        key = theirs if theirs == "recip_rank" else f"{theirs}_{k}"
        expected = [judged[str(user)][key] for user in range(users)]
        assert found[ours].tolist() == pytest.approx(expected, abs=1e-12)


@given(st.data())
def test_the_auc_of_each_user_is_scikit_learns(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    rows, users = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 5))
    user_N = torch.from_numpy(rng.integers(users, size=rows))
    score_N = torch.from_numpy(rng.integers(4, size=rows) / 2).float()  # with ties
    label_N = torch.from_numpy(rng.integers(2, size=rows))
    found = auc_per_user(user_N, score_N, label_N, users + 1)
    assert math.isnan(found[users])  # without rows
    for user in range(users):
        mine = user_N == user
        if len(label_N[mine].unique()) < 2:
            assert math.isnan(found[user])
        else:
            expected = roc_auc_score(label_N[mine], score_N[mine])
            assert float(found[user]) == pytest.approx(expected, abs=1e-12)


def naive(run: Path, prepared: Path, k: int) -> dict[str, float]:
    """By loops and a full sort of the catalogue for each user of the test split."""
    frames = {name: pd.read_parquet(prepared / name) for name in ("train", "val", "test")}
    seen, wanted = defaultdict(set), defaultdict(set)
    for name, frame in frames.items():
        for user, item, watch in zip(frame.user_index, frame.item_index, frame.watch, strict=True):
            if watch == 1:
                (wanted if name == "test" else seen)[user].add(item)
    train = frames["train"][frames["train"].watch == 1]
    users = frames["train"].user_index.nunique()
    popularity = train.groupby("item_index").user_index.nunique() / users
    predictor, sums, shown = Predictor.load(run), defaultdict(list), set()
    for user, relevant in wanted.items():
        [logits] = predictor.catalogue_logits(torch.tensor([user]), 0).tolist()
        order = sorted(set(range(len(logits))) - seen[user], key=lambda i: (-logits[i], i))[:k]
        gains = [(item in relevant) / math.log2(2 + rank) for rank, item in enumerate(order)]
        best = sum(1 / math.log2(2 + rank) for rank in range(min(k, len(relevant))))
        ranks = [rank for rank, item in enumerate(order, start=1) if item in relevant]
        sums["ndcg"].append(sum(gains) / best)
        sums["recall"].append(len(ranks) / len(relevant))
        sums["mrr"].append(1 / ranks[0] if ranks else 0)
        sums["hit_rate"].append(bool(ranks))
        sums["popularity"].append(np.mean([popularity.get(item, 0) for item in order]))
        shown |= set(order)
    result = {name: float(np.mean(values)) for name, values in sums.items()}
    result["gauc"] = naive_gauc(predictor, frames["test"].dropna(subset="watch"))
    return result | {"coverage": len(shown) / len(logits), "users": len(wanted)}


def naive_gauc(predictor: Predictor, rows: pd.DataFrame) -> float:
    """Each user's AUC counts as often as the user has rows."""
    pairs = (torch.tensor(rows[name].tolist()) for name in ("user_index", "item_index"))
    rows = rows.assign(score=predictor.pair_logits(*pairs)[:, 0].numpy())
    both = [own for _, own in rows.groupby("user_index") if own.watch.nunique() == 2]
    assert len({len(own) for own in both}) > 1  # else the weights are not seen
    aucs = [roc_auc_score(own.watch, own.score) for own in both]
    return float(np.average(aucs, weights=[len(own) for own in both]))


@pytest.mark.parametrize("k", [1, 10, 40])
def test_all_users_are_ranked_as_by_loops_over_users(run: Path, prepared: Path, k: int) -> None:
    found = evaluate_ranking(run, "test", prepared, k=k)
    expected = naive(run, prepared, k)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    assert found["items"] == 40 and found["excluded"] == ["train", "val"]


@dataclass
class Drawn:
    """Random rows of a split and of what was watched before it, and a score for every pair."""

    rows: RankingRows
    score_UI: torch.Tensor


USERS, ITEMS = 5, 7


def drawn(seed: int, trained: float = 0.8) -> Drawn:
    rng = np.random.default_rng(seed)
    seen_UI = rng.random((USERS, ITEMS)) < 0.3
    wanted_UI = (rng.random((USERS, ITEMS)) < 0.4) & ~seen_UI
    wanted_UI[0, 0], seen_UI[0, 0] = True, False
    user, item = pairs_of(~seen_UI)
    label = torch.from_numpy(wanted_UI[~seen_UI]).double()
    return Drawn(
        RankingRows(
            relevant=pairs_of(wanted_UI),
            excluded=pairs_of(seen_UI),
            excluded_splits=("train",),
            labelled=Labelled(user, item, label, torch.ones_like(label)),
            positives_I=torch.from_numpy(seen_UI.sum(0)),
            trained_user_U=torch.from_numpy(rng.random(USERS) < trained),
            trained_item_I=torch.from_numpy(rng.random(ITEMS) < trained),
            counts={},
        ),
        torch.from_numpy(rng.integers(4, size=(USERS, ITEMS))).float(),  # with ties
    )


def pairs_of(holds_UI: Any) -> Pairs:
    return Pairs(*(torch.from_numpy(index.copy()) for index in holds_UI.nonzero()))


def judged(one: Drawn, k: int) -> dict[str, Any]:
    top_UK = top_lists(lambda users: one.score_UI[users.user], one.rows, k)
    asked = one.rows.labelled
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking_metrics, "RESAMPLES", 5)  # nothing here looks at an interval
        return described(top_UK, one.score_UI[asked.user, asked.item], one.rows)


@given(st.integers(0, 200), st.integers(1, ITEMS))
def test_what_is_excluded_never_appears_and_ties_go_to_the_lower_index(seed: int, k: int) -> None:
    one = drawn(seed)
    top_UK = top_lists(lambda users: one.score_UI[users.user], one.rows, k)
    seen = set(zip(*(column.tolist() for column in one.rows.excluded), strict=True))
    for user, top in zip(one.rows.users.tolist(), top_UK.tolist(), strict=True):
        left = [item for item in range(ITEMS) if (user, item) not in seen]
        best = sorted(left, key=lambda item: (-float(one.score_UI[user, item]), item))[:k]
        assert top == best + [NONE] * (k - len(best))


@settings(max_examples=30)
@given(st.integers(0, 200), st.integers(1, ITEMS))
def test_a_perfect_ranking_has_all_that_a_list_can_hold(seed: int, k: int) -> None:
    one = drawn(seed)
    one.score_UI.zero_()[one.rows.relevant.user, one.rows.relevant.item] = 1
    found = judged(one, k)
    assert [found[name] for name in ("ndcg", "mrr", "hit_rate")] == [1, 1, 1]
    assert found["gauc"] in (1, None)
    wanted_U = torch.bincount(one.rows.relevant.user)
    wanted_U = wanted_U[wanted_U > 0]
    assert found["recall"] == pytest.approx(float((wanted_U.clamp(max=k) / wanted_U).mean()))


@settings(max_examples=30)
@given(st.integers(0, 200))
def test_segments_share_out_users_and_hits(seed: int) -> None:
    one = drawn(seed, trained=0.5)
    found, segments = judged(one, ITEMS), judged(one, ITEMS)["segments"]
    warm, cold = segments["warm_users"], segments["cold_users"]
    assert warm["users"] + cold["users"] == found["users"]
    parts = [part["users"] * part["ndcg"] for part in (warm, cold) if part["users"]]
    assert sum(parts) / found["users"] == pytest.approx(found["ndcg"])
    for part in (segments["warm_items"], segments["cold_items"]):
        assert part["recall"] in (1, None)  # lists of the whole catalogue leave out nothing


def test_an_unknown_item_is_a_miss_and_an_unknown_user_is_left_out(prepared: Path) -> None:
    schema = Schema.load(prepared)
    size, users = schema.item.size, schema.user.size
    pairs = Pairs(torch.tensor([3, 3, 3, users, 3]), torch.tensor([5, size, 5, 1, 7]))
    excluded_N = torch.tensor([3 * (size + 1) + 7])
    relevant, left_out = relevant_pairs(pairs, excluded_N, schema)
    assert relevant.item.tolist() == [5, size]  # 5 once, 7 was watched before
    assert left_out == {"relevant_of_unknown_users": 1, "relevant_excluded": 1}


def test_relevance_may_ask_for_a_least_rating(run: Path, prepared: Path) -> None:
    test = pd.read_parquet(prepared / "test")
    liked = test[(test.watch == 1) & (test.rating >= 4)]
    found = evaluate_ranking(run, "test", prepared, relevant="rating >= 4")
    assert (found["relevant"], found["users"]) == (len(liked), liked.user_index.nunique())
    assert 0 < len(liked) < (test.watch == 1).sum()


def test_the_same_bytes_on_any_number_of_threads(run: Path, prepared: Path) -> None:
    threads, found = torch.get_num_threads(), []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            found.append(evaluate_ranking(run, "val", prepared))
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1] and found[0]["excluded"] == ["train"]
