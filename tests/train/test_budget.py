"""fit --minutes: a plan that ends in time, and stays when a run is resumed."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from recsys_moe.cli import training
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError
from recsys_moe.train import budget
from recsys_moe.train.budget import Deadline, planned
from recsys_moe.train.fit import fit
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.processes.launch import check_minutes
from tests.conftest import TINY_MODEL, Command

CONFIG: dict[str, Any] = {
    "model": TINY_MODEL,
    "optim": {"schedule": "cosine"},
    "trainer": {"max_epochs": 24, "batch_size": 64},
}


@pytest.mark.parametrize(
    ("seconds", "epochs"),
    [
        (11, 4),  # 11 * .9 = 9.9 s for epochs of 2 * 1.1 = 2.2 s
        (100, 24),  # 90 / 2.2 = 40, and 24 are the most
        (1, 1),  # an epoch is the least
    ],
)
def test_a_plan_has_the_epochs_that_end_in_time(
    seconds: float, epochs: int, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_epoch_seconds", lambda *_: 2.0)
    config = parse_config(CONFIG)
    found = planned(config, RecDataModule(prepared, config), seconds)
    assert found.trainer.max_epochs == epochs
    assert found == budget.with_epochs(config, epochs)


def test_the_seconds_of_an_epoch_are_those_of_its_batches() -> None:
    def batches(count: int) -> list[float]:
        return [0.005] * count

    found = budget._seconds(batches(100), time.sleep, 60, budget.torch.device("cpu"))
    assert 0.5 <= found < 5  # 100 * 5 ms; a busy machine sleeps longer
    begun = time.monotonic()
    budget._seconds(batches(10**4), time.sleep, 0.02, budget.torch.device("cpu"))
    assert time.monotonic() - begun < 10  # of 50 s
    assert budget._seconds([], time.sleep, 1, budget.torch.device("cpu")) < 1


@pytest.mark.slow
def test_measuring_changes_no_weight(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run of a plan is the run with as many epochs."""
    from recsys_moe.files import sha256_file

    ends = "on_train_epoch_end"  # early on a machine that became slower: here the plan counts
    monkeypatch.setattr(budget.Deadline, ends, lambda *of_lightning: None)
    fit(CONFIG, prepared, tmp_path / "a", minutes=0.1)
    most = yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())["trainer"]["max_epochs"]
    config = {**CONFIG, "trainer": {**CONFIG["trainer"], "max_epochs": most}}
    fit(config, prepared, tmp_path / "b")
    first, second = (sha256_file(tmp_path / r / "model" / "weights.safetensors") for r in "ab")
    assert first == second


def test_a_resumed_run_keeps_its_plan(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setattr(budget, "_epoch_seconds", lambda *_: 2.0)
    monkeypatch.setattr(Deadline, "on_train_epoch_end", lambda *_: None)
    fit(CONFIG, prepared, tmp_path / "run", minutes=0.1)  # 6 s * .9 / 2.2 = 2 epochs
    monkeypatch.setattr(budget, "_epoch_seconds", lambda *_: 1e9)
    fit(CONFIG, prepared, tmp_path / "run", minutes=0.1, resume="auto")
    words = ["--data", prepared, "--out", tmp_path / "run", "--resume", "auto", "--minutes", "5"]
    assert command("fit", *words).exit_code == 0
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert written["trainer"]["max_epochs"] == 2


def test_training_ends_before_an_epoch_that_would_be_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Epochs of 4 s and 10 s of time: after the second, at 8 s, the third would end at 12 s."""
    now = 0.0
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: now))
    deadline, trainer = Deadline(10), SimpleNamespace(max_epochs=5, current_epoch=0)
    trainer.should_stop = False
    for epoch, stops in enumerate([False, True]):
        trainer.current_epoch = epoch
        deadline.on_train_epoch_start()
        now += 4
        deadline.on_train_epoch_end(trainer)  # type: ignore[arg-type]
        assert trainer.should_stop is stops


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused(minutes: float) -> None:
    with pytest.raises(ConfigError, match="--minutes must be above 0, got .*; e.g."):
        check_minutes(minutes, 1)


def test_several_processes_are_refused() -> None:
    with pytest.raises(ConfigError, match="left out with .* = 2: .*give --max-epochs"):
        check_minutes(1.0, 2)


def test_the_start_of_the_command_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training.time, "process_time", lambda: 30.0)
    assert training._left(10.0) == 9.5
    assert training._left(0.6) == 0.3  # at least half is left for training
    assert training._left(None) is None
