"""The given configuration is trial 0; edges are said; a trial is its epoch of trainer.monitor."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.artifact.monitor import Monitor
from recsys_moe.config.settings import parse_config
from recsys_moe.lab.tune.results import Kept, kept, summary
from recsys_moe.lab.tune.run import tune
from tests.conftest import TINY_MODEL
from tests.lab.in_process import InProcess
from tests.lab.tune.tune_pretend import ASKED, TRAINER, Pretend, drawn, in_memory, trials
from tests.train.test_monitor import script


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory(monkeypatch)


def results(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "trials.json").read_text())
    return found


def steep(config: dict[str, Any], epoch: int) -> float:
    """The larger the learning rate, the lower the loss."""
    return float(1 / config["optim"]["lr"] / epoch)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_the_given_configuration_is_trial_0_and_the_others_lie_around_it(
    prepared: Path, tmp_path: Path, sampler: str
) -> None:
    config = parse_config({"model": TINY_MODEL, "optim": {"lr": 3e-3}, "trainer": TRAINER})
    request = replace(ASKED, config=config, sampler=sampler, trials=8)
    tune(request, prepared, tmp_path / "out", executor=Pretend())
    first, *others = drawn(tmp_path / "out")
    assert first == {"optim.lr": 3e-3, "penalties.trimmed_lasso": 0.0}
    rates = [params["optim.lr"] for params in others]
    assert all(3e-4 <= rate <= 3e-2 for rate in rates) and len({3e-3, *rates}) == 8
    assert [trial["given"] for trial in trials(tmp_path / "out")] == [True] + [False] * 7
    assert "Trial 0 is the given configuration." in results(tmp_path / "out")["notes"]
    again = Pretend()
    tune(replace(request, trials=9), prepared, tmp_path / "out", executor=again)
    assert again.ran == ["fit 0008"]  # it is given once


@pytest.mark.usefixtures("quick")
def test_a_task_is_given_its_weight_where_what_training_minimises_is_searched(
    prepared: Path, tmp_path: Path
) -> None:
    key = "tasks.watch.training_weight"
    config = parse_config({"model": TINY_MODEL, "trainer": TRAINER})
    request = replace(ASKED, config=config, space={key: {"low": 0.5, "high": 1}}, trials=2)
    tune(request, prepared, tmp_path / "out", executor=Pretend())
    first, second = drawn(tmp_path / "out")
    assert first[key] == 0.9 and 0.5 <= second[key] <= 1  # ASKED weighs 0.9 and 0.1


@pytest.mark.usefixtures("quick")
def test_of_equal_trials_the_first_is_the_best(prepared: Path, tmp_path: Path) -> None:
    tune(ASKED, prepared, tmp_path / "out", executor=Pretend(loss=lambda config, epoch: 1.0))
    assert results(tmp_path / "out")["best"] == 0


@pytest.mark.usefixtures("quick")
def test_a_given_value_outside_a_named_range_is_said_and_not_tried(
    prepared: Path, tmp_path: Path
) -> None:
    space = {"optim.lr": {"low": 2e-3, "high": 1e-2, "log": True}}  # given: 1e-3
    tune(replace(ASKED, space=space), prepared, tmp_path / "out", executor=Pretend())
    assert all(2e-3 <= params["optim.lr"] <= 1e-2 for params in drawn(tmp_path / "out"))
    found = results(tmp_path / "out")
    said = "The given configuration is not a trial: its optim.lr is outside the search space."
    assert said in found["notes"] and not any(trial["given"] for trial in found["trials"])


@pytest.mark.usefixtures("quick")
def test_a_best_value_at_an_edge_is_said_in_words(prepared: Path, tmp_path: Path) -> None:
    space = {
        "optim.lr": {"choices": [1e-4, 4e-4, 1e-3]},
        "penalties.trimmed_lasso": None,
        "model.dropout": {"choices": [0.5]},
    }
    request = replace(ASKED, space=space, trials=12)
    tune(request, prepared, tmp_path / "out", executor=Pretend(loss=steep))
    said = (
        "The best optim.lr, 0.001, is at the upper edge of its values, 0.0001, 0.0004, 0.001; "
        "widen it with --space, in another --out."
    )
    found = results(tmp_path / "out")
    assert [note for note in found["notes"] if "edge" in note] == [said]
    assert said in summary(found, tmp_path / "out")
    tune(request, prepared, tmp_path / "inside", executor=Pretend())  # best at 2e-4
    inside = trials(tmp_path / "inside")[results(tmp_path / "inside")["best"]]
    assert inside["params"]["optim.lr"] == 1e-4  # |1/2 - 1| < |2 - 1|: the lower edge
    assert any("at the lower edge" in note for note in results(tmp_path / "inside")["notes"])


def test_a_trial_is_worth_the_loss_of_the_epoch_that_the_monitor_keeps(tmp_path: Path) -> None:
    assert kept(tmp_path, Monitor("loss", "min")) == Kept({}, None)
    rows = ["1,1,0.5,0.6", "2,1,0.4,0.8", "3,1,0.3,0.7", "4,1,0.35,0.8", ""]
    head = "epoch,train/loss,val/loss,val/watch/auc"
    (tmp_path / "metrics.csv").write_text("\n".join([head, *rows]))
    assert kept(tmp_path, Monitor("loss", "min")) == Kept({1: 0.5, 2: 0.4, 3: 0.3, 4: 0.3}, 3)
    assert kept(tmp_path, Monitor("watch/auc", "max")) == Kept({1: 0.5, 2: 0.4, 3: 0.4, 4: 0.4}, 2)


def test_tune_says_which_metric_chose_the_epochs(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, loss=[0.1, 0.2], watch_auc=[0.6, 0.7])
    trainer = {**TRAINER, "batch_size": 512, "monitor": "watch/auc"}
    config = parse_config({"model": TINY_MODEL, "trainer": trainer})
    out = tmp_path / "out"
    tune(replace(ASKED, config=config, trials=1), prepared, out, executor=InProcess())
    (trial,) = trials(out)
    result = json.loads((out / trial["run"] / "evaluation" / "val.json").read_text())
    assert (trial["best_epoch"], trial["loss"]) == (result["epoch"], result["loss"])
    assert (result["epoch"], result["monitor"]) == (2, "watch/auc")
    assert results(out)["monitor"] == "watch/auc"
    said = "lowest validation loss, each at its epoch with the best validation watch/auc;"
    assert said in results(out)["notes"][0]
    assert "at epoch 2, the best by watch/auc;" in (out / "best.yaml").read_text()
