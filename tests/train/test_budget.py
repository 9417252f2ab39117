"""fit --minutes: a plan that ends in time, and stays when a run is resumed."""

from __future__ import annotations

import signal
import time
from functools import partialmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from recsys_moe.cli import training
from recsys_moe.config.auto_rules import Choice
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError, Interrupted
from recsys_moe.train import budget
from recsys_moe.train.budget import Deadline, planned, within
from recsys_moe.train.fit import fit
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
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
        (14, 4),  # 5 of 14 s are for the end: 9 s for epochs of 2 * 1.1 = 2.2 s
        (9.2, 2),  # at most half: 4.6 s
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


@pytest.mark.parametrize(
    ("measured", "took", "epochs"),
    [
        (2.0, 15.0, 3),  # 60 * .9 = 54 s; 39 s are left for epochs of 15 * 1.03
        (50.0, 15.0, 3),  # the first plan was an epoch
        (2.0, 13.4, 3),  # 40.6 s for epochs of 13.4 * 1.03 = 13.8
        (2.0, 40.0, 1),
    ],
)
def test_the_first_epoch_plans_anew_and_the_run_is_that_of_as_many_epochs(
    measured: float,
    took: float,
    epochs: int,
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In every byte of the weights and of the configuration, whatever was planned at first: to
    measure, a clock that stands still finds 0 s, changes no weight."""
    clock, begin = SimpleNamespace(now=0.0), Deadline.on_train_epoch_start
    measure = budget._epoch_seconds

    def epoch(self: Deadline, *of_lightning: Any) -> None:
        begin(self, *of_lightning)
        clock.now += took

    monkeypatch.setattr(budget, "_epoch_seconds", lambda *asked: measured + measure(*asked))
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(Deadline, "on_train_epoch_start", epoch)
    fit(CONFIG, prepared, tmp_path / "a", minutes=1)
    config = {**CONFIG, "trainer": {**CONFIG["trainer"], "max_epochs": epochs}}
    fit(config, prepared, tmp_path / "b")
    for file in ("config.yaml", "model/config.yaml", "model/weights.safetensors"):
        first, second = ((tmp_path / run / file).read_bytes() for run in "ab")
        assert first == second, file
    assert (tmp_path / "a" / "metrics.csv").read_text().count("\n") == 1 + epochs


@pytest.mark.parametrize(
    ("precision", "expected"), [("32-true", {False}), ("bf16-mixed", {True}), ("64-true", {False})]
)
def test_steps_are_measured_in_the_precision_of_training(
    precision: str, expected: set[bool], prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, steps = set(), (RecModule.training_step, RecModule.validation_step)

    def watched(self: RecModule, *given: Any, number: int) -> Any:
        found.add(torch.is_autocast_enabled("cpu"))
        return steps[number](self, *given)

    for number, name in enumerate(("training_step", "validation_step")):
        monkeypatch.setattr(RecModule, name, partialmethod(watched, number=number))
    trainer = {**CONFIG["trainer"], "precision": precision, "accelerator": "cpu"}
    config = parse_config({**CONFIG, "trainer": trainer})
    assert budget._epoch_seconds(config, RecDataModule(prepared, config), 1.0) > 0
    assert found == expected


@pytest.mark.parametrize(
    ("seconds", "given", "batch", "rate"),
    [
        (60, (), 64, 0.001),  # all 24 epochs
        (50, (), 32, 0.0015),  # 45 / 2.2 = 20 epochs of 24.6 steps are 492
        (50, ("trainer.batch_size",), 64, 0.001),  # what was given stays, and with it the rate
    ],
)
def test_a_plan_of_few_steps_has_more_unless_their_settings_were_given(
    seconds: float,
    given: tuple[str, ...],
    batch: int,
    rate: float,
    prepared: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "_epoch_seconds", lambda *_: 2.0)
    config = parse_config(CONFIG)
    chosen = [Choice(key, None, "") for key in budget.GIVES_MORE if key not in given]
    data = RecDataModule(prepared, config)
    found = planned(config, data, seconds, chosen)
    assert (found.trainer.batch_size, found.optim.lr) == (batch, rate)
    monkeypatch.setattr(budget, "FEW_STEPS", 300)
    assert planned(config, data, seconds, chosen).trainer.batch_size == 64


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_run_that_ended_inside_its_second_epoch_keeps_its_plan(
    overwrite: bool, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it was to replace another one, which has another plan and other batches."""
    monkeypatch.setattr(budget, "_epoch_seconds", lambda *_: 2.0)
    out, trainer = tmp_path / "run", {**CONFIG["trainer"], "checkpoint_every_n_steps": 7}
    config = parse_config({**CONFIG, "trainer": trainer})
    if overwrite:
        fit({**CONFIG, "trainer": {"max_epochs": 1, "batch_size": 128}}, prepared, out)
    chosen = [Choice(key, None, "") for key in budget.GIVES_MORE]
    asked: dict[str, Any] = {"minutes": 0.24, "chosen": chosen}  # (14.4 - 5) / 2.2 = 4 epochs

    def stop(self: Deadline, trainer: Any, *of_lightning: Any) -> None:
        if (trainer.current_epoch, of_lightning[-1]) == (1, 10):
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Deadline, "on_train_epoch_end", lambda *_: None)
        patched.setattr(Deadline, "on_train_batch_end", stop)
        with pytest.raises(Interrupted, match="continue with --resume auto"):
            fit(config, prepared, out, overwrite=overwrite, **asked)
    fit(config, prepared, out, resume="auto", **{**asked, "minutes": 100})
    written = yaml.safe_load((out / "config.yaml").read_text())["trainer"]
    assert (written["max_epochs"], written["batch_size"]) == (4, 32)
    assert (out / "metrics.csv").read_text().count("\n") == 1 + 4


def test_a_resumed_run_keeps_its_batches(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "_epoch_seconds", lambda *_: 2.0)
    monkeypatch.setattr(Deadline, "on_train_epoch_end", lambda *_: None)
    chosen = [Choice(key, None, "") for key in budget.GIVES_MORE]
    config = parse_config(CONFIG)
    fit(config, prepared, tmp_path / "run", minutes=0.17, chosen=chosen)  # 2 epochs
    fit(config, prepared, tmp_path / "run", minutes=5, chosen=chosen, resume="auto")
    written = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert written["trainer"]["batch_size"] == 32 and written["optim"]["lr"] == 0.0015


def test_a_resumed_run_keeps_its_plan(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setattr(budget, "_epoch_seconds", lambda *_: 2.0)
    monkeypatch.setattr(Deadline, "on_train_epoch_end", lambda *_: None)
    fit(CONFIG, prepared, tmp_path / "run", minutes=0.17)  # (10.2 - 5) / 2.2 = 2 epochs
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
        deadline.on_train_epoch_end(trainer, None)  # type: ignore[arg-type]
        assert trainer.should_stop is stops


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused(minutes: float) -> None:
    with pytest.raises(ConfigError, match="--minutes must be above 0, got .*; e.g."):
        check_minutes(minutes, 1)


def test_several_processes_are_refused() -> None:
    with pytest.raises(ConfigError, match="left out with .* = 2: .*give --max-epochs"):
        check_minutes(1.0, 2)


def test_the_start_of_the_command_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "STARTED", 100.0)
    monkeypatch.setattr(training.time, "monotonic", lambda: 130.0)
    assert training._left(10.0) == 9.5
    assert training._left(0.6) == 0.3  # at least half is left for training
    assert training._left(None) is None


def test_what_measuring_takes_is_not_left_for_training(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)

    def measured(*_: Any) -> float:
        clock.now += 20
        return 2.0

    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(budget, "_epoch_seconds", measured)
    config = parse_config(CONFIG)
    found = planned(config, RecDataModule(prepared, config), 60)
    assert found.trainer.max_epochs == 15  # (60 * .9 - 20) / 2.2


@pytest.mark.parametrize(("finished", "most"), [(0, 24), (1, 0)])
def test_a_resumed_run_ends_in_time_and_its_first_epoch_still_plans(
    finished: int, most: int, prepared: Path
) -> None:
    config = parse_config(CONFIG)
    before = budget.with_epochs(config, 6).model_dump(mode="json")
    state = {"hyper_parameters": {"config": before}}
    saved: Any = SimpleNamespace(finished=finished, state=state)
    found, [deadline] = within(1.0, config, (), data=prepared, saved=saved)
    assert found.trainer.max_epochs == 6 and deadline.most == most
    assert 50 < deadline.end - time.monotonic() <= 54


@pytest.mark.parametrize(
    ("ready", "planned_epochs"),
    [
        (30, [1 + 2]),  # 2.5 s for 10 of 40 batches, 2 s of validation: epochs of 12 * 1.03 s
        (0, [1 + 2]),  # 10 s for all of them
        (33, []),  # 7 of 40 tell too little
        (40, []),
    ],
)
def test_the_rest_of_an_epoch_stands_for_the_whole_one(
    ready: int, planned_epochs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch takes .25 s; of 40 s, 35.5 or 28 are left."""
    now, found = 0.0, list[int]()
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(Deadline, "_plan", lambda *given: found.append(given[-1]))
    progress = SimpleNamespace(current=SimpleNamespace(ready=ready))
    loop = SimpleNamespace(restarting=True, epoch_loop=SimpleNamespace(batch_progress=progress))
    trainer: Any = SimpleNamespace(fit_loop=loop, num_training_batches=40, current_epoch=0)
    deadline, module = Deadline(40, 9), RecModule.__new__(RecModule)
    deadline.on_train_start(trainer)
    now += 0.25 * (40 - ready)
    deadline.on_validation_start()
    now += 2
    deadline.on_train_epoch_end(trainer, module)
    assert found == planned_epochs
