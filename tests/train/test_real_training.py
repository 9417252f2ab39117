"""Every router on real data: MovieLens-100K. What a first model reaches: test_defaults.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from data_prep.movielens import prepare
from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.config.settings import parse_config
from recsys_moe.routers import ROUTERS
from recsys_moe.train.fit import fit

CONSTANT_MSE = 1.29
"""Mean squared error of the best constant rating on the test split."""


@pytest.fixture(scope="module")
def ml_100k(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ml-100k") / "data"
    prepare("100k", real_data / "ml-100k", folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    not os.environ.get("RECSYS_MOE_SLOW"),
    reason="an epoch of ml-100k for each router, minutes in all: set RECSYS_MOE_SLOW=1",
)
@pytest.mark.parametrize("name", list(ROUTERS))
def test_every_router_learns_in_one_epoch_of_ml_100k(
    name: str, ml_100k: Path, tmp_path: Path
) -> None:
    """`fit --router NAME --max-epochs 1 --lr 1e-3`: AUC .84 or more at a gate rate of 1."""
    settings = {"model": {"router": {"name": name}}, "optim": {"lr": 1e-3}}
    fit(parse_config({**settings, "trainer": {"max_epochs": 1}}), ml_100k, tmp_path / "run")
    result = evaluate_artifact(tmp_path / "run", "test", None)
    assert result["tasks"]["watch"]["auc"] > 0.8
    assert result["tasks"]["rating"]["mse"] < CONSTANT_MSE
