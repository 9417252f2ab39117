"""Rankings are judged exactly: equal to loops over users, to trec_eval and to scikit-learn.

Axes: U users, K ranks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from recsys_moe.inference.predictor import Predictor
from recsys_moe.inference.ranking import evaluate_ranking
from recsys_moe.inference.ranking_metrics import (
    PerUser,
    auc_per_user,
    bootstrap,
    list_metrics,
    means,
)

LISTS = ("ndcg", "recall", "mrr", "hit_rate")


def test_the_figures_of_a_list_by_hand() -> None:
    hit_UK = torch.tensor([[False, True, True], [False, False, False], [True, True, True]])
    found = list_metrics(hit_UK, torch.tensor([2, 1, 5]))
    third = 1 / math.log2(4)  # of rank 3; that of rank 2 is 1 / log2(3), of rank 1 it is 1
    ideal = 1 + 1 / math.log2(3)
    # user 0: ranks 2 and 3 of two relevant ones; user 2: a list of 3 cannot hold its 5
    assert found["ndcg"].tolist() == pytest.approx([(1 / math.log2(3) + third) / ideal, 0, 1])
    assert found["recall"].tolist() == pytest.approx([2 / 2, 0, 3 / 5])
    assert found["mrr"].tolist() == [1 / 2, 0, 1]
    assert found["hit_rate"].tolist() == [1, 0, 1]


@given(st.data())
def test_lists_are_judged_as_trec_eval_does(data: st.DataObject) -> None:
    trec = pytest.importorskip("pytrec_eval", reason="pytrec-eval-terrier is in [dev]")
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
    popularity = train.groupby("item_index").user_index.nunique() / train.user_index.nunique()
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
    return result | {"coverage": len(shown) / len(logits), "users": len(wanted)}


@pytest.mark.parametrize("k", [1, 10, 40])
def test_all_users_are_ranked_as_by_loops_over_users(run: Path, prepared: Path, k: int) -> None:
    found = evaluate_ranking(run, "test", prepared, k=k)
    expected = naive(run, prepared, k)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    assert found["items"] == 40 and found["excluded"] == ["train", "val"]


def test_intervals_are_those_of_scipy() -> None:
    from scipy.stats import bootstrap as reference

    rng = np.random.default_rng(1)
    values = rng.random(400)
    figure = PerUser(torch.from_numpy(values), torch.ones(400).double())
    [low, high] = bootstrap({"x": figure})["x"]
    theirs = reference(
        (values,), np.mean, method="percentile", n_resamples=2000
    ).confidence_interval
    # a standard error of the mean is 0.29 / sqrt(400) = 0.0144; bounds vary by a tenth of it
    assert (low, high) == pytest.approx(tuple(theirs), abs=0.003)
    assert means({"x": figure})["x"] == pytest.approx(values.mean())
