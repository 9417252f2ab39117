"""Every router of the table through the whole product: train, save, load, evaluate, predict."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
import torch

from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.config.settings import parse_config
from recsys_moe.data.columns import load_columns
from recsys_moe.inference.predictor import Predictor
from recsys_moe.model.request import Request
from recsys_moe.routers import ROUTERS
from recsys_moe.train.fit import fit
from tests.conftest import TINY_MODEL


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_the_artifact_evaluates_as_the_model_that_was_trained(
    name: str, prepared: Path, tmp_path: Path
) -> None:
    model = {**TINY_MODEL, "router": {"name": name}}
    trainer = {"max_epochs": 1, "batch_size": 64}
    fitted = fit(parse_config({"model": model, "trainer": trainer}), prepared, tmp_path / "run")
    loaded = evaluate_artifact(tmp_path / "run", "val", None)
    assert math.isfinite(loaded["loss"])
    assert loaded["loss"] == pytest.approx(fitted["loss"], abs=1e-6)
    assert loaded["routing"] == fitted["routing"]
    first, second = (Predictor.load(tmp_path / "run").recommend([1], k=3)[0] for _ in range(2))
    assert first == second and len(first) == 3


@pytest.mark.parametrize("name", ["moesart", "pps", "topk"])
def test_a_joint_choice_visits_k_experts_in_training_evaluation_and_explanations(
    name: str, prepared: Path, tmp_path: Path
) -> None:
    model = {**TINY_MODEL, "router": {"name": name, "joint": 2, "k": 2}}
    trainer = {"max_epochs": 1, "batch_size": 64}
    config = parse_config({"model": model, "trainer": trainer})
    fitted = fit(config, prepared, tmp_path / "run")
    loaded = evaluate_artifact(tmp_path / "run", "val", None)
    assert loaded["loss"] == pytest.approx(fitted["loss"], abs=1e-6)
    assert loaded["experts_per_example"] == 2
    with (tmp_path / "run" / "metrics.csv").open(encoding="utf-8") as stream:
        (line,) = csv.DictReader(stream)
    assert float(line["train/evaluated_share"]) == 2 / TINY_MODEL["num_experts"]
    artifact = load_artifact(tmp_path / "run" / "model")
    request = Request(torch.tensor([0, 1]), torch.tensor([3, 4]))
    watch, rating = artifact.model.expert_shares(request)
    for one, other in zip(watch, rating, strict=True):
        assert {share.expert for share in one} == {share.expert for share in other}
        assert sum(share.weight for share in one) == pytest.approx(1)


def test_a_fit_balances_the_table_of_a_balanced_hash_router(prepared: Path, tmp_path: Path) -> None:
    """60 users with some 30 rows each over 4 experts: the loads end a few rows apart."""
    model = {**TINY_MODEL, "router": {"name": "hash", "balanced": True}}
    trainer = {"max_epochs": 1, "batch_size": 64}
    fit(parse_config({"model": model, "trainer": trainer}), prepared, tmp_path / "run")
    artifact = load_artifact(tmp_path / "run" / "model")
    user_N = load_columns(prepared, artifact.schema, "train").user.long()
    for router in artifact.model.routers:
        rows_E = torch.bincount(router.expert_U[user_N], minlength=4)  # type: ignore[union-attr]
        assert rows_E.max() - rows_E.min() < 0.02 * len(user_N)
