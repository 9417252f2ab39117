"""Warm and cold items apart, intervals of weighed figures, and whose share popularity is.

Axes: U users, K ranks, I items.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from recsys_moe.data.streaming import Labelled
from recsys_moe.inference.evaluation.ranking_metrics import PerUser, bootstrap, means
from recsys_moe.inference.evaluation.ranking_report import described
from recsys_moe.inference.evaluation.ranking_rows import RankingRows, ranking_rows
from recsys_moe.inference.evaluation.ranking_wanted import Pairs, wanted_rows
from recsys_moe.schema import Schema


def test_of_an_item_segment_only_its_items_are_relevant() -> None:
    """Items 0 and 1 are in training rows, 2 and 3 are not; 4 stands for an unknown one."""
    user_N, item_N = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 2, 4, 1, 3])
    one_N = torch.ones(2, dtype=torch.float64)
    rows = RankingRows(
        relevant=Pairs(user_N, item_N),
        excluded=Pairs(torch.tensor([0]), torch.tensor([1])),
        excluded_splits=("train",),
        labelled=Labelled(torch.tensor([0, 0]), torch.tensor([0, 3]), one_N, one_N),
        positives_I=torch.tensor([2, 2, 0, 0]),
        trained_user_U=torch.ones(2, dtype=torch.bool),
        trained_item_I=torch.tensor([True, True, False, False]),
        counts={},
    )
    found = described(torch.tensor([[0, 3], [3, 1]]), torch.zeros(2), rows)["segments"]
    # warm: user 0 has 0 of {0}, user 1 has 1 of {1}, in its second place
    assert (found["warm_items"]["recall"], found["warm_items"]["mrr"]) == (1, (1 + 1 / 2) / 2)
    # cold: user 0 has none of {2, unknown}, user 1 has 3 of {3}
    assert (found["cold_items"]["recall"], found["cold_items"]["users"]) == ((0 + 1) / 2, 2)


def test_intervals_of_weighed_figures_are_those_of_scipy() -> None:
    from scipy.stats import bootstrap as reference

    rng = np.random.default_rng(1)
    values = rng.random(400)
    weights = 1.0 + 9 * (values > 0.5)  # so that the weighed mean is far from the plain one
    figure = PerUser(torch.from_numpy(values), torch.from_numpy(weights))
    [low, high] = bootstrap({"x": figure})["x"]

    def mean(values: np.ndarray, weights: np.ndarray) -> float:
        return float(np.average(values, weights=weights))

    options = {"paired": True, "vectorized": False, "method": "percentile", "n_resamples": 1000}
    options["rng"] = np.random.default_rng(2)
    theirs = reference((values, weights), mean, **options).confidence_interval
    # the standard error is sqrt(sum w^2 (x - m)^2) / sum w = 0.0105; as of plain means a bound is
    # known to 0.085 of it, 0.0009, the difference of two to 0.0013: four of these
    assert (low, high) == pytest.approx(tuple(theirs), abs=0.005)
    expected = mean(values, weights)
    assert means({"x": figure})["x"] == pytest.approx(expected)
    assert values.mean() + 0.1 < low < expected < high


def test_popularity_is_a_share_of_all_users_of_training(prepared: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(prepared, tmp_path / "data"))
    for part in (data / "train").glob("*.parquet"):
        frame = pd.read_parquet(part)
        frame.loc[frame.user_index < 5, "watch"] = 0
        pq.write_table(pa.Table.from_pandas(frame, pq.read_schema(part)), part)
    train = pd.read_parquet(data / "train")
    watched = train[train.watch == 1]
    schema = Schema.load(data)
    rows = ranking_rows(data, schema, "test", wanted=wanted_rows(schema, 10), most=10**6)
    users = train.user_index.nunique()
    assert watched.user_index.nunique() <= users - 5
    item = int(watched.item_index.mode()[0])
    share = watched[watched.item_index == item].user_index.nunique() / users
    assert float(rows.popularity(torch.tensor(item))) == pytest.approx(share)
