"""research/time_peers: each peer is what a plain loop over the log gives."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from research.time_peers import lists, ratings, watch
from research.time_peers.__main__ import main
from research.time_peers.lists import DAY, Carried
from research.time_peers.log import Log, ordered
from tests.data_prep.samples import lines

ITEMS = 6


def frame(rows: list[tuple[int, int, int, int]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["user", "item", "rating", "time"])


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Users 0 to 2, each of ITEMS once at most, in 4 days, with equal times among them."""
    rows = []
    for user in range(3):
        items = draw(st.permutations(range(ITEMS)))[: draw(st.integers(1, ITEMS))]
        rows += [
            (user, item, draw(st.integers(1, 5)), draw(st.integers(0, 4)) * DAY) for item in items
        ]
    log = ordered(frame(rows), "log", 0)
    return Log(log.user, np.array([rows[n][1] for n in _order(rows)]), log.rating, log.time)


def _order(rows: list[tuple[int, int, int, int]]) -> list[int]:
    return sorted(range(len(rows)), key=lambda n: (rows[n][0], rows[n][3], n))


def place(scores: list[float], target: int, seen: set[int]) -> int:
    """Of the target in the list of the items that are not seen, the lower index first."""
    left = [i for i in range(len(scores)) if i not in seen]
    return sorted(left, key=lambda i: (-scores[i], i)).index(target)


@given(logs(), st.sampled_from([0.5, 1.0]), st.sampled_from([0, 2]))
def test_what_a_state_carries_is_the_weighted_sum_of_the_last_items(
    log: Log, decay: float, window: int
) -> None:
    weights = np.random.default_rng(0).integers(-4, 5, (log.items, log.items)).astype(np.float32)
    ranked = np.ones(len(log.user), bool)
    wanted = []
    for n in range(len(log.user)):
        before = [m for m in range(n) if log.user[m] == log.user[n]]
        seen = {int(log.item[m]) for m in before}
        last = before[-window:] if window else before
        scores = np.zeros(log.items)
        for back, m in enumerate(reversed(last)):
            scores += decay**back * weights[log.item[m]]
        wanted.append(place(scores.tolist(), int(log.item[n]), seen))
    part = Carried(weights, decay, window)
    assert lists.carried_ranks(log, ranked, [part]).tolist() == wanted


@given(logs(), st.sampled_from([(0, 0), (2, 0), (0, 1)]))
def test_popularity_counts_what_anybody_did_strictly_before(
    log: Log, form: tuple[int, int]
) -> None:
    days, half_life = form
    wanted = []
    for n in range(len(log.user)):
        scores = [0.0] * log.items
        for m in range(len(log.user)):
            age = (log.time[n] - log.time[m]) / DAY
            if age > 0 and not (days and age > days):
                scores[log.item[m]] += 2 ** (-age / half_life) if half_life else 1
        seen = {int(log.item[m]) for m in range(n) if log.user[m] == log.user[n]}
        wanted.append(place(scores, int(log.item[n]), seen))
    ranked = np.ones(len(log.user), bool)
    found = lists.popular_ranks(log, ranked, days=days, half_life=half_life)
    assert found.tolist() == wanted


@given(logs())
def test_running_means_read_strictly_earlier_times_or_the_order_of_the_log(log: Log) -> None:
    train = log.time < 3 * DAY
    if not train.any():
        return
    mean = log.rating[train].mean()
    item = [log.rating[train & (log.item == i)] - mean for i in range(log.items)]
    of_item = [values.sum() / (len(values) + 5) for values in item]
    found = ratings.predictions(log, train)
    for rule in ("log", "strict"):
        for n in range(len(log.user)):
            own = [m for m in range(n) if log.user[m] == log.user[n]]
            own = own if rule == "log" else [m for m in own if log.time[m] < log.time[n]]
            left = [log.rating[m] - mean - of_item[log.item[m]] for m in own]
            wanted = mean + of_item[log.item[n]] + sum(left) / (len(left) + 5)
            assert found[f"item + running user / {rule}"][n] == pytest.approx(wanted)


def test_cooccurrence_counts_what_comes_behind() -> None:
    """0 1 2 of one user: 1 is one step behind 0, 2 two steps; divided by its one event and 1."""
    rows = [(0, 0, 5, 1), (0, 1, 5, 2), (0, 2, 5, 3)]
    found = lists.cooccurrence(ordered(frame(rows), "log", 0), 3, decay=0.5)
    assert found.tolist() == [[0, 0.5, 0.25], [0, 0, 0.5], [0, 0, 0]]


def test_hit_rate_and_ndcg_of_ranks() -> None:
    # gains of the ranks 0, 2 and 10: 1, 1 / log2(4) = .5, and none behind the tenth
    assert lists.figures(np.array([0, 2, 10])) == {"hit_rate@10": 2 / 3, "ndcg@10": 0.5}


def test_auc_of_popularity_on_a_prepared_folder(tmp_path: Path) -> None:
    rows = {
        "train": ([0, 0, 1], [1, 1, 1], [0, DAY, DAY]),
        "val": ([2], [1], [2 * DAY]),
        "test": ([0, 1, 2, 0], [1, 0, 1, 0], [3 * DAY] * 4),
    }
    for split, (item, label, time) in rows.items():
        (tmp_path / split).mkdir()
        columns = {"item_index": item, "watch": label, "timestamp": time}
        pd.DataFrame(columns).to_parquet(tmp_path / split / "part.parquet")
    found = {peer: auc for peer, auc, _ in watch.popularity_auc(tmp_path)}
    labels = [1, 0, 1, 0]
    assert found["popularity, frozen after train"] == roc_auc_score(labels, [2, 1, 0, 2])
    assert found["popularity, running"] == roc_auc_score(labels, [2, 1, 1, 2])
    halved = [2**-3 + 2**-2, 2**-2, 2**-1, 2**-3 + 2**-2]
    assert found["popularity, half-life 1 d, running"] == roc_auc_score(labels, halved)


def test_the_command_writes_a_row_per_peer(tmp_path: Path) -> None:
    rows = [
        f"{u}\t{(3 * u + 7 * k) % 20}\t{1 + k % 5}\t{100 * k + u}"
        for u in range(9)
        for k in range(15)
    ]
    lines(tmp_path / "u.data", rows)
    main(["--ml-100k", str(tmp_path), "--csv", str(tmp_path / "found.csv")])
    with (tmp_path / "found.csv").open() as stream:
        found = list(csv.DictReader(stream))
    peers = {(row["protocol"], row["tie_rule"]) for row in found}
    protocols = ("leave-last", "cut, last", "cut, successive")
    assert {(p, t) for p in protocols for t in ("log", "shuffle")} < peers
    assert all(0 <= float(row["ndcg@10"]) <= 1 for row in found if row["ndcg@10"])
