"""tasks.TASK.training_weight: what training minimises, apart from what results are judged by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from recsys_moe.config.settings import Config, parse_config, task_weights, training_weights
from recsys_moe.errors import ConfigError
from recsys_moe.schema import Schema
from recsys_moe.train.fit import fit
from tests.conftest import TINY_MODEL

CONFIGS = Path(__file__).parents[2] / "configs"


def config(watch: dict[str, Any], rating: dict[str, Any]) -> Config:
    """One epoch, so that both weights keep the same one."""
    model = {**TINY_MODEL, "biases": False}
    trainer = {"max_epochs": 1, "batch_size": 64}
    tasks = {"watch": watch, "rating": rating}
    return parse_config({"model": model, "trainer": trainer, "tasks": tasks})


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "weights.safetensors")


def test_training_follows_its_own_weights_and_the_result_the_others(
    prepared: Path, tmp_path: Path
) -> None:
    apart = config({"weight": 0.1, "training_weight": 0.9}, {"weight": 0.9, "training_weight": 0.1})
    alike = config({"weight": 0.9}, {"weight": 0.1})
    judged = fit(apart, prepared, tmp_path / "apart")
    plain = fit(alike, prepared, tmp_path / "alike")
    one, other = weights_of(tmp_path / "apart"), weights_of(tmp_path / "alike")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    bce, mse = judged["tasks"]["watch"]["bce"], judged["tasks"]["rating"]["mse"]
    assert (bce, mse) == (plain["tasks"]["watch"]["bce"], plain["tasks"]["rating"]["mse"])
    assert judged["loss"] == pytest.approx(0.1 * bce + 0.9 * mse)
    assert plain["loss"] == pytest.approx(0.9 * bce + 0.1 * mse)


def test_a_task_without_one_trains_by_its_weight(prepared: Path) -> None:
    tasks = Schema.load(prepared).tasks
    some = config({"weight": 0.1, "training_weight": 0.0}, {"weight": 0.9})
    assert task_weights(some, tasks) == [0.1, 0.9]
    assert training_weights(some, tasks) == [0.0, 0.9]
    assert training_weights(parse_config({}), tasks) == [task.weight for task in tasks]


def test_training_for_nothing_is_refused(prepared: Path, tmp_path: Path) -> None:
    nothing = {"weight": 1.0, "training_weight": 0.0}
    with pytest.raises(ConfigError, match=r"a training_weight .*got 0 for watch"):
        fit(config(nothing, nothing), prepared, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("size", ["100k", "1m"])
def test_the_shipped_configurations_for_ratings_train_what_the_best_ones_train(size: str) -> None:
    shipped = {
        name: yaml.safe_load((CONFIGS / f"movielens_{size}_{name}.yaml").read_text())
        for name in ("best", "rating")
    }
    best, rating = (shipped[name].pop("tasks") for name in ("best", "rating"))
    assert shipped["rating"] == shipped["best"]
    for task, section in rating.items():
        assert section["training_weight"] == best[task]["weight"]
    assert [section["weight"] for section in rating.values()] == [0.1, 0.9]


def test_the_log_says_both_where_they_differ(
    prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "recsys_moe.fit")
    fit(config({"weight": 0.9}, {"weight": 0.1}), prepared, tmp_path / "alike")
    assert "loss of training" not in caplog.text
    fit(
        config({"weight": 0.9, "training_weight": 1}, {"weight": 0.1}), prepared, tmp_path / "apart"
    )
    assert "training: watch 1, rating 0.1 (tasks.TASK.training_weight)" in caplog.text
    assert "of results: watch 0.9, rating 0.1" in caplog.text
