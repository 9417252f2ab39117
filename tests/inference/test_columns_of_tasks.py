"""A task behind one with classes: its logits are not in the column of its number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from recsys_moe import Predictor, prepare
from recsys_moe.config.settings import parse_config
from recsys_moe.inference.evaluation.ranking import evaluate_ranking
from recsys_moe.train.fit import fit
from tests import logs
from tests.conftest import TINY_MODEL

CLICK = 1
"""Number of the task; mood has three columns, so that its column is 3."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Data with a task of three classes before a binary one, and a run."""
    folder = tmp_path_factory.mktemp("moods")
    logs.rare_clicks(folder / "log.csv", users=80, items=60)
    log = pd.read_csv(folder / "log.csv")
    log["clicked"] = [(5 * n + n // 7) % 4 == 0 for n in range(len(log))]
    log["mood"] = np.array(["calm", "glad", "sad"])[np.arange(len(log)) % 3]
    tasks = {"mood": "multiclass=mood", "click": "binary=clicked"}
    prepare(log, user="visitor", item="page", tasks=tasks, out=folder / "data")
    model = {**TINY_MODEL, "bilinear_rank": 4}
    sections = {"model": model, "trainer": {"max_epochs": 2, "batch_size": 64}}
    fit(parse_config(sections), folder / "data", folder / "run")
    return folder / "data", folder / "run"


@pytest.fixture(scope="module")
def predictor(folders: tuple[Path, Path]) -> Predictor:
    return Predictor.load(folders[1])


@pytest.fixture(scope="module")
def clicks(predictor: Predictor) -> torch.Tensor:
    """Probability of a click of three users for every item, pair by pair. (U, N)"""
    users, items = ["v1", "v2", "v7"], predictor.artifact.items["item"].to_pylist()
    return torch.stack(
        [predictor.score([user] * len(items), items).tasks["click"] for user in users]
    )


@pytest.fixture(scope="module")
def user_U(predictor: Predictor) -> torch.Tensor:
    return predictor.users.index(["v1", "v2", "v7"])[0]


def test_a_catalogue_is_ranked_by_the_task(
    predictor: Predictor, clicks: torch.Tensor, user_U: torch.Tensor
) -> None:
    logits_UN = predictor.catalogue_logits(user_U, CLICK)
    assert torch.allclose(logits_UN.sigmoid(), clicks, atol=1e-6)


@pytest.mark.parametrize("retrieve", [None, 59])
def test_lists_are_by_the_task(
    predictor: Predictor, clicks: torch.Tensor, retrieve: int | None
) -> None:
    lists = predictor.recommend(["v1", "v2", "v7"], k=5, score="click", retrieve=retrieve)
    for found, click_N in zip(lists, clicks, strict=True):
        shown_K = torch.tensor([one.scores["click"] for one in found])
        assert torch.allclose(shown_K, click_N[[one.index for one in found]], atol=1e-6)
        best_N = click_N.sort(descending=True, stable=True).values
        # The first stage may leave out one item.
        assert shown_K[-1] > best_N[4 if retrieve is None else 5] - 1e-6


def test_evaluation_judges_the_lists_that_recommend_gives(
    folders: tuple[Path, Path], predictor: Predictor
) -> None:
    data, run = folders
    found = evaluate_ranking(run, "val", data, k=20)
    rows = pd.read_parquet(data / "val")
    clicked = rows[rows["click"] == 1]
    hits = []
    ids = pd.read_parquet(data / "users.parquet")["user"]
    for user, own in clicked.groupby("user_index"):
        listed = predictor.recommend([ids[user]], k=20, exclude_seen=True)[0]
        hits.append(bool({one.index for one in listed} & set(own["item_index"])))
    assert 0.2 < np.mean(hits) < 0.9
    assert found["hit_rate"] == pytest.approx(np.mean(hits))


def test_retrieving_all_items_changes_no_figure(folders: tuple[Path, Path]) -> None:
    data, run = folders
    exact, two_stages = (
        evaluate_ranking(run, "val", data, k=20, retrieve=retrieve) for retrieve in (None, 60)
    )
    assert two_stages == exact | {"retrieve": 60}
