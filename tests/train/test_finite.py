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


def left_behind(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def test_at_a_logged_step_the_run_ends_there(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nan_at(6, monkeypatch)
    with pytest.raises(RunError, match="the training loss became nan by step 6"):
        fit(config(3), prepared, tmp_path / "run")
    assert left_behind(tmp_path / "run") == []


def test_between_logged_steps_the_run_ends_with_the_epoch(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nan_at(7, monkeypatch)
    with pytest.raises(RunError, match="the training loss became nan by step 25"):
        fit(config(3), prepared, tmp_path / "run")  # 25 steps are an epoch
    assert left_behind(tmp_path / "run") == []


def test_in_validation_the_run_ends_with_the_epoch(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Evaluation.result
    spoilt = lambda self, split: {**result(self, split), "loss": NAN}  # noqa: E731
    monkeypatch.setattr(Evaluation, "result", spoilt)
    with pytest.raises(RunError, match="the validation loss became nan by step 25"):
        fit(config(100), prepared, tmp_path / "run")
    assert left_behind(tmp_path / "run") == []
