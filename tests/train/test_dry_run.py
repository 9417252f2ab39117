"""`fit --dry-run` refuses what the run would refuse before its first step, and writes nothing."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.artifact.run_folder import begin_run
from recsys_moe.config.settings import parse_config
from recsys_moe.data.batches import EvalBatches, TrainBatches
from recsys_moe.errors import ConfigError, Interrupted, UserError
from recsys_moe.schema import Schema
from recsys_moe.train.checkpoints import Checkpoints
from recsys_moe.train.fit import dry_run, fit
from recsys_moe.train.loader import EachEpoch, RecDataModule
from tests.conftest import TINY_MODEL, Command
from tests.train.test_resume import STEP, after_signal, config

TRAIN_BATCHES: Any = RecDataModule.train_batches


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def first_batches(module: RecDataModule, epoch: int, **share: int) -> EvalBatches | TrainBatches:
    """All rows at once, in order, where an epoch is asked for; its steps where processes are."""
    return (
        TRAIN_BATCHES(module, epoch, **share) if share else EvalBatches(module.rows("train"), 9999)
    )


@pytest.fixture(scope="module")
def halted(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped inside its second epoch, of 25 steps."""
    out = tmp_path_factory.mktemp("halted") / "run"
    with pytest.MonkeyPatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(Checkpoints, STEP, after_signal(getattr(Checkpoints, STEP), 40))
        fit(config(), prepared, out)
    return out


def damage(run: Path) -> None:
    for file in (run / "checkpoints").iterdir():
        os.truncate(file, 100)


def replacement(run: Path) -> None:
    part = run.with_name("run.part")
    begin_run(part, run, config(), part.parent / "data", resume=None, checkpoint=None)


Case = tuple[dict[str, Any], dict[str, Any], Callable[[Path], object]]
REFUSED: dict[str, Case] = {
    "a run is there": ({}, {}, bool),
    "a run and its replacement": ({}, {}, replacement),
    "a folder of others": ({}, {}, lambda run: (run / "config.yaml").unlink()),
    "an overwritten folder of others": (
        {},
        {"overwrite": True},
        lambda run: (run / "config.yaml").unlink(),
    ),
    "a file of others": ({}, {"overwrite": True}, lambda run: (run / "notes.txt").touch()),
    "two beginnings": ({}, {"resume": "auto", "init_from": "elsewhere"}, bool),
    "another rate": ({"optim": {"lr": 0.1}}, {"resume": "auto"}, bool),
    "damaged checkpoints": ({}, {"resume": "auto"}, damage),
    "no such checkpoint": ({}, {"resume": "nowhere.ckpt"}, bool),
    "fewer epochs": ({"trainer": {"max_epochs": 0}}, {"resume": "auto"}, bool),
    "no such device": ({"trainer": {"accelerator": "gpu"}}, {"overwrite": True}, bool),
    "no such task": ({"tasks": {"wach": {"weight": 1}}}, {"overwrite": True}, bool),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_dry_run_refuses_what_the_run_refuses(
    case: str, prepared: Path, halted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections, asked, change = REFUSED[case]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    out = shutil.copytree(halted, tmp_path / "run")
    shutil.copytree(prepared, tmp_path / "data")
    change(out)
    before, said = files(tmp_path), []
    for entry in (dry_run, fit):
        with pytest.raises(UserError) as error:
            entry(config(**sections), tmp_path / "data", out, **asked)
        said.append((type(error.value), str(error.value)))
        assert files(tmp_path) == before
    assert said[0] == said[1]


@pytest.mark.parametrize("entry", [dry_run, fit])
def test_another_number_of_steps_per_epoch_is_refused_inside_one(
    prepared: Path, halted: Path, monkeypatch: pytest.MonkeyPatch, entry: Any
) -> None:
    """As with two devices, which take two batches in a step: 12 steps, and not 25."""
    for loader in (TrainBatches, EachEpoch):
        monkeypatch.setattr(loader, "__len__", lambda batches: batches.batches // 2)
    before = files(halted / "checkpoints")
    with pytest.raises(ConfigError, match="inside an epoch of 25 steps, got 12.*best.ckpt"):
        entry(config(), prepared, halted, resume="auto")
    assert files(halted / "checkpoints") == before


def test_a_run_that_may_go_on_is_tried_with_its_weights(
    prepared: Path, halted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One and the same batch of all rows: 15 steps inside the second epoch make its loss less."""
    monkeypatch.setattr(RecDataModule, "train_batches", first_batches)
    before = files(halted)
    told = dry_run(config(), prepared, halted, resume="auto")
    assert files(halted) == before
    untrained = dry_run(config(), prepared, halted.with_name("other"))
    assert told["loss_of_first_batch"] < untrained["loss_of_first_batch"]
    assert not halted.with_name("other").exists()


def test_the_command_passes_on_all_that_it_was_asked(
    prepared: Path, halted: Path, run: Path, tmp_path: Path, command: Command
) -> None:
    words = ["fit", "--data", prepared, "--dry-run", "--out"]
    assert "--init-from" in command.fails(
        2, *words, tmp_path / "a", "--init-from", run, "--resume", "auto"
    )
    assert str(halted) in command.fails(2, *words, halted)
    assert "num_nodes=2" in command.fails(2, *words, tmp_path / "a", "--num-nodes", "2")
    assert not any(tmp_path.iterdir())


def test_several_devices_are_tried_in_one_process(prepared: Path, tmp_path: Path) -> None:
    trainer = {"devices": 2, "accelerator": "cpu"}
    told = dry_run(config(trainer=trainer), prepared, tmp_path / "run")
    assert told["steps_per_epoch"] == 25 and not any(tmp_path.iterdir())


def test_a_run_with_other_settings_is_not_told_to_go_on(prepared: Path, halted: Path) -> None:
    """--resume auto would refuse the rate."""
    said = []
    for rate in (1e-3, 1e-2):
        with pytest.raises(UserError) as error:
            fit(config(optim={"lr": rate}), prepared, halted)
        said.append("--resume auto" in str(error.value))
    assert said == [True, False]


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"model": {"biases": False}},
        {"model": {"router": {"name": "hash", "balanced": True}}},
        {"data": {"resample_negatives": True, "popularity_exponent": 0.75, "user_exponent": 0}},
    ],
)
def test_dry_run_tells_the_loss_of_the_first_batch_of_training(
    sections: dict[str, Any], prepared: Path, tmp_path: Path
) -> None:
    """All rows in one batch and steps of next to nothing: it is the loss of the epoch."""
    model = {**TINY_MODEL, "dropout": 0, "router": "softmax", **sections.get("model", {})}
    trainer = {"max_epochs": 1, "batch_size": Schema.load(prepared).rows["train"]}
    settings = {**sections, "model": model, "trainer": trainer, "optim": {"lr": 1e-9}}
    told = dry_run(parse_config(settings), prepared, tmp_path / "run")["loss_of_first_batch"]
    fit(parse_config(settings), prepared, tmp_path / "run")
    with open(tmp_path / "run/metrics.csv") as stream:
        (row,) = csv.DictReader(stream)
    assert told == pytest.approx(float(row["train/loss"]), rel=1e-5)
