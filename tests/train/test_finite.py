"""A loss that is no number ends the run in words: at its step, or at the end of its epoch.

Only the value is made NaN: the gradients, and so the weights, stay finite, so that each of the
three checks is alone in seeing it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recsys_moe.artifact.evaluation import Evaluation
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.errors import RunError
from recsys_moe.train.fit import fit
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
from tests.conftest import TINY_MODEL

NAN = float("nan")


def config(log_every_n_steps: int) -> Config:
    trainer = {"max_epochs": 2, "batch_size": 64, "log_every_n_steps": log_every_n_steps}
    return parse_config({"model": TINY_MODEL, "trainer": trainer})


def nan_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = RecModule.losses

    def spoilt(self: RecModule, *args: Any) -> Any:
        loss, penalties = losses(self, *args)
        return loss + (NAN if self.global_step == step else 0), penalties

    monkeypatch.setattr(RecModule, "losses", spoilt)


@pytest.mark.parametrize(("at", "seen"), [(6, 6), (7, 25)], ids=["logged", "not logged"])
def test_the_run_ends_at_the_logged_step_or_with_the_epoch(
    at: int, seen: int, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third step is logged, and 25 are an epoch."""
    nan_at(at, monkeypatch)
    with pytest.raises(RunError, match=f"the training loss became nan by step {seen}"):
        fit(config(3), prepared, tmp_path / "run")
    assert not (tmp_path / "run").exists()  # else the next run would meet a folder of nothing


def test_in_validation_the_run_ends_with_the_epoch(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Evaluation.result
    spoilt = lambda self, split: {**result(self, split), "loss": NAN}  # noqa: E731
    monkeypatch.setattr(Evaluation, "result", spoilt)
    with pytest.raises(RunError, match="the validation loss became nan by step 25"):
        fit(config(100), prepared, tmp_path / "run")
    assert not (tmp_path / "run").exists()  # else the next run would meet a folder of nothing


def test_after_an_epoch_its_checkpoints_stay_and_the_remedy_is_another_run(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """25 steps are an epoch; --resume auto keeps the rate, and so the fault."""
    nan_at(31, monkeypatch)
    with pytest.raises(RunError, match=r"by step 31; lower optim.lr.*--overwrite") as error:
        fit(config(3), prepared, tmp_path / "run")
    assert "finish" in str(error.value)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["best.ckpt", "last.ckpt"]


def test_a_folder_in_which_something_else_lies_is_not_removed(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nan_at(6, monkeypatch)
    load = RecDataModule.train_dataloader

    def noted(module: RecDataModule) -> object:
        (tmp_path / "run" / "notes.txt").write_text("dear")
        return load(module)

    monkeypatch.setattr(RecDataModule, "train_dataloader", noted)
    with pytest.raises(RunError, match="by step 6"):
        fit(config(3), prepared, tmp_path / "run")
    assert (tmp_path / "run" / "notes.txt").read_text() == "dear"


def test_a_fault_of_a_part_from_outside_before_any_checkpoint_leaves_no_folder(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: RecModule, *args: Any) -> Any:
        raise IndexError("as of a router from outside")

    monkeypatch.setattr(RecModule, "losses", broken)
    with pytest.raises(IndexError):
        fit(config(3), prepared, tmp_path / "run")
    assert not (tmp_path / "run").exists()
