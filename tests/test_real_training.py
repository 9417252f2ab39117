"""Quality on real data: MovieLens-100K under the paper's protocol."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_prep.movielens import prepare
from recsys_moe.config import parse_config
from recsys_moe.evaluate import evaluate_artifact
from recsys_moe.train import fit


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_moesart_on_ml_100k_beats_popularity_and_a_constant_rating(
    real_data: Path, tmp_path: Path
) -> None:
    """`fit --router moesart --max-epochs 10 --lr 1e-3`: a constant rating has MSE 1.29 there."""
    prepare("100k", real_data / "ml-100k", tmp_path / "data")
    config = parse_config({"optim": {"lr": 1e-3}, "trainer": {"max_epochs": 10}})
    fit(config, tmp_path / "data", tmp_path / "run")
    result = evaluate_artifact(tmp_path / "run", "test", None)
    assert result["tasks"]["watch"]["auc"] > 0.86
    assert result["tasks"]["rating"]["mse"] < 1.0
