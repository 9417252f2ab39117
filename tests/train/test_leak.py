"""A bag must not leak the labels of the rows that it was made from.

Labels here are coin flips: a model of ids alone can memorise only a little. A model that reads
labels off the item that is missing in a bag learns more.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.synthetic import prepare
from recsys_moe.train.fit import fit

SMALL = {"embedding_dim": 16, "num_experts": 4, "expert_dim": 32, "tower_dims": [16]}
MODEL = {**SMALL, "dropout": 0.0, "biases": False, "router": {"name": "softmax"}}


@pytest.fixture(scope="module")
def tastes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """150 users, 100 items, 11,025 training rows, of which much can be learned."""
    folder = tmp_path_factory.mktemp("tastes") / "data"
    prepare(folder, users=150, items=100, interactions=7000)
    return folder


@pytest.fixture(scope="module")
def coins(tastes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same users, items and rows: watched or not, and if so 1 to 5, by chance."""
    folder = tmp_path_factory.mktemp("coins") / "data"
    shutil.copytree(tastes, folder)
    random = np.random.default_rng(0)
    for part in sorted(folder.glob("*/*.parquet")):
        table = pq.read_table(part)
        watched = random.integers(0, 2, table.num_rows)
        stars = pa.array(random.integers(1, 6, table.num_rows), pa.float32(), mask=watched == 0)
        values = {"watch": pa.array(watched, pa.float32()), "rating": stars}
        for name, column in values.items():
            table = table.set_column(table.column_names.index(name), name, column)
        pq.write_table(table, part)
    return folder


@pytest.fixture(scope="module")
def learn(coins: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, float]]:
    """What the last epoch of a fit has in metrics.csv."""

    def learned(first: Path | None = None, **model: Any) -> dict[str, float]:
        """`first`: data of a model that the fit starts from."""
        out = tmp_path_factory.mktemp("leak") / "run"
        trainer = {"max_epochs": 12, "batch_size": 256, "patience": 100}
        settings = {"model": {**MODEL, **model}, "optim": {"lr": 5e-3}, "trainer": trainer}
        if first is not None:
            fit(settings, first, out.with_name("first"))
        fit(settings, coins, out, init_from=None if first is None else out.with_name("first"))
        with (out / "metrics.csv").open() as stream:
            last = list(csv.DictReader(stream))[-1]
        return {name: float(value) for name, value in last.items()}

    return learned


@pytest.fixture(scope="module")
def by_memory(learn: Callable[..., dict[str, float]]) -> float:
    """The training loss of ids alone; the constants' is 0.9 ln 2 + 0.1 x 2 = 0.824."""
    return learn()["train/loss"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "histories",
    [
        {"item_bag": "items", "user_bag": "users"},
        {"item_bag": "ratings", "user_bag": "ratings"},
        {"item_bag": "ratings", "user_bag": "ratings", "bag_ratings": "linear"},
    ],
    ids=lambda histories: ",".join(f"{name}={value}" for name, value in histories.items()),
)
def test_a_bag_leaks_no_coin_flips(
    histories: dict[str, Any], learn: Callable[..., dict[str, float]], by_memory: float
) -> None:
    found = learn(**histories)
    assert found["train/loss"] > by_memory - 0.02
    assert abs(found["val/watch/auc"] - 0.5) < 0.044  # 3 deviations of 1,575 rows


@pytest.mark.slow
def test_a_warm_start_leaks_nothing_either(
    tastes: Path, learn: Callable[..., dict[str, float]]
) -> None:
    """The rows of ids then begin as whole vectors minus the sum over the new histories."""
    found, alone = learn(tastes, item_bag="ratings"), learn(tastes)
    assert found["train/loss"] > alone["train/loss"] - 0.02
    assert abs(found["val/watch/auc"] - 0.5) < 0.044


@pytest.mark.slow
def test_without_dropout_the_embedding_of_the_id_makes_the_missing_item_known(
    learn: Callable[..., dict[str, float]], by_memory: float
) -> None:
    """The rating of the item left out is the memorised sum minus the bag."""
    found = learn(item_bag="ratings", bag_dropout=0.0)["train/loss"]
    assert found < by_memory - 0.05
