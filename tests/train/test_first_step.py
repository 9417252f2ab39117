"""What is known before the first step, and what of a run that fails later stays."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys_moe.artifact.monitor import BY_LOSS
from recsys_moe.errors import ConfigError
from recsys_moe.schema import Schema
from recsys_moe.train.fit import dry_run, fit
from recsys_moe.train.module import RecModule
from recsys_moe.train.trainer import make_trainer
from tests.conftest import TINY_MODEL
from tests.train.test_train import config


def test_what_fails_after_a_checkpoint_keeps_it(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(module: RecModule) -> None:
        if module.trainer.current_epoch == 1:
            raise ConfigError("as of a router from outside")

    monkeypatch.setattr(RecModule, "on_train_epoch_start", refuse, raising=False)
    with pytest.raises(ConfigError, match="from outside"):
        fit(config(), prepared, tmp_path / "run")
    assert (tmp_path / "run/checkpoints/last.ckpt").exists()


def test_auto_and_gpu_never_mean_a_macs_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no float64."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    trainer = make_trainer(config(), Path("unused"), BY_LOSS)
    assert trainer.strategy.root_device.type == "cpu"
    with pytest.raises(ConfigError, match="trainer.accelerator=gpu"):
        make_trainer(config(trainer={"accelerator": "gpu"}), Path("unused"), BY_LOSS)


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
    told = dry_run(config(**settings), prepared, tmp_path / "run")["loss_of_first_batch"]
    fit(config(**settings), prepared, tmp_path / "run")
    with open(tmp_path / "run/metrics.csv") as stream:
        (row,) = csv.DictReader(stream)
    assert told == pytest.approx(float(row["train/loss"]), rel=1e-5)
