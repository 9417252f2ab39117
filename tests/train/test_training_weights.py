"""What training minimises: training weights, the unit of labels, and the rates of parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from recsys_moe.config.settings import Config, parse_config, task_weights, training_weights
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.schema import Schema
from recsys_moe.train.fit import fit
from recsys_moe.train.module import RecModule
from tests.conftest import TINY_MODEL
from tests.train.test_train import first_rows, module
from tests.train.test_warm_start import settings, table

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


@pytest.mark.parametrize("unit", [1e-40, 1e-16, 1e15, 1e37])
def test_labels_that_float32_cannot_square_are_the_fault_of_the_labels(
    unit: float, tmp_path: Path
) -> None:
    """Stars of 1 to 5 units: a standard deviation of 1.4 units, at most 5 units."""
    data, out = table(tmp_path / "a", unit=unit), tmp_path / "run"
    for biases in (True, False):
        with pytest.raises(DataError) as error:
            fit(settings(model={"biases": biases}), data, out)
        assert "rating" in str(error.value) and "optim.lr" not in str(error.value)
        assert f"{5 * unit:g}" in str(error.value) or unit < 1
        assert not out.exists()


def test_the_unit_of_labels_within_changes_nothing_but_the_unit(tmp_path: Path) -> None:
    """Powers of two, so that nothing is rounded; an MSE is in squared units."""
    found, once = [], settings(trainer={"max_epochs": 1})
    for number, unit in enumerate((1.0, 2.0**-46, 2.0**46)):
        data = table(tmp_path / str(number), unit=unit)
        result = fit(once, data, tmp_path / str(number) / "run")
        found.append(result["tasks"]["rating"]["mse"] / unit**2)
    assert found[1:] == pytest.approx([found[0]] * 2, rel=1e-4)


LR = 1e-3


def first_moves(data: Path, **optim: Any) -> dict[str, Tensor]:
    """How far the first step moves each parameter."""
    learner: RecModule = module(data, optim={"lr": LR, "eps": 1e-30, **optim})
    optimizer, batch = learner.make_optimizer(), first_rows(data, 64)
    before = {name: value.detach().clone() for name, value in learner.named_parameters()}
    loss, _ = learner.losses(learner.model(batch.request), batch.labels)
    loss.backward()
    optimizer.step()
    return {name: value.detach() - before[name] for name, value in learner.named_parameters()}


def test_gates_have_a_rate_of_their_own(prepared: Path) -> None:
    """The first step of Adam is lr in size wherever there is a gradient, whatever that is."""
    for name, move in first_moves(prepared, router_lr_multiplier=10.0).items():
        size = 10 * LR if "routers" in name else LR
        moved = move[move != 0].abs()
        torch.testing.assert_close(moved, torch.full_like(moved, size), rtol=0.01, atol=0)


def test_a_rate_of_one_moves_gates_as_all_else(prepared: Path) -> None:
    usual, one = first_moves(prepared), first_moves(prepared, router_lr_multiplier=1.0)
    for name, move in one.items():
        moved = move[move != 0].abs()
        torch.testing.assert_close(moved, torch.full_like(moved, LR), rtol=0.01, atol=0)
        size = 10 * LR if "routers" in name else LR  # the default
        found = usual[name][usual[name] != 0].abs()
        torch.testing.assert_close(found, torch.full_like(found, size), rtol=0.01, atol=0)


def test_routers_do_not_decay(prepared: Path) -> None:
    """A decay of 1e6 drowns every gradient: the first step is lr towards 0, but for the gates."""
    usual, decayed = first_moves(prepared), first_moves(prepared, weight_decay=1e6)
    for name, move in decayed.items():
        if "bias" not in name:  # which start at 0
            assert move.equal(usual[name]) == ("routers" in name), name
