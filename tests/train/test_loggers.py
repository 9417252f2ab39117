"""trainer.logger: what is written where, and that nothing else of a run depends on it."""

from __future__ import annotations

import importlib.util
import os
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.config.settings import Config, parse_config
from recsys_moe.errors import RunError
from recsys_moe.train import loggers
from recsys_moe.train.fit import fit
from recsys_moe.train.loggers import open_logger
from tests.conftest import TINY_MODEL, Command, tells


def config(**trainer: Any) -> Config:
    settings = {"max_epochs": 1, "batch_size": 512, **trainer}
    return parse_config({"model": TINY_MODEL, "trainer": settings})


def content(run: Path) -> dict[str, bytes]:
    """What must not depend on the logger."""
    names = ("metrics.csv", "evaluation/val.json", "model/weights.safetensors")
    return {name: (run / name).read_bytes() for name in names}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """What MLflow's and W&B's loggers are made with, in an environment that says nothing."""
    made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
    for name in ("MLFlowLogger", "WandbLogger"):
        monkeypatch.setattr(loggers, name, lambda *a, n=name, **k: made.append((n, a, k)))
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: ModuleSpec(name, None, origin="x")
    )
    for variable in ("MLFLOW_TRACKING_URI", *loggers.QUIET):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    return made


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_metrics_and_weights_are_the_same_whichever_logger_there_is(
    prepared: Path, tmp_path: Path
) -> None:
    for name in ("tensorboard", "csv"):
        fit(config(logger=name, max_epochs=2), prepared, tmp_path / name)
    assert content(tmp_path / "csv") == content(tmp_path / "tensorboard")
    assert not (tmp_path / "csv" / "events").exists()
    assert list((tmp_path / "tensorboard" / "events").glob("events.out.tfevents.*"))


def test_events_that_cannot_be_written_cost_a_warning_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "events").write_text("a file where the folder would be")
    events = open_logger("tensorboard", tmp_path)
    assert events
    for step in (0, 1):
        events.log_metrics({"loss": 0.5}, step)
    events.finalize("success")
    (line,) = caplog.messages
    assert tells(line, "events ... File exists")


def test_a_continued_run_may_have_another_logger(prepared: Path, tmp_path: Path) -> None:
    fit(config(), prepared, tmp_path / "run")
    fit(config(logger="csv", max_epochs=2), prepared, tmp_path / "run", resume="auto")
    fit(config(max_epochs=2), prepared, tmp_path / "straight")
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == (
        tmp_path / "straight" / "metrics.csv"
    ).read_bytes()


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_package_is_named_before_anything_is_written(
    prepared: Path, tmp_path: Path, command: Command, without_packages: None, name: str
) -> None:
    flags = ["--data", prepared, "--set", f"trainer.logger={name}", "--out", tmp_path / "run"]
    for more in ([], ["--dry-run"]):
        said = command.fails(2, "fit", *flags, *more)
        assert tells(said, f"trainer.logger={name} ... {name}, which is not installed")
        assert tells(said, f"pip install {name}, ... tensorboard or csv")
    assert list(tmp_path.iterdir()) == []


class Opened:
    """A logger with a run of its own, which is W&B's where it says so."""

    def __init__(self, begun: bool = True) -> None:
        self.ended: list[int] = []
        self._experiment = self if begun else None

    @property
    def experiment(self) -> Opened:
        raise AssertionError("would begin a run")

    def finish(self, exit_code: int) -> None:
        self.ended.append(exit_code)


class Wandb(Opened):
    pass


def test_a_run_of_wandb_is_finished_and_other_loggers_are_let_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the next `fit` of this process would log into it; 1: it failed."""
    monkeypatch.setattr(loggers, "WandbLogger", Wandb)
    opened, unused, other = Wandb(), Wandb(begun=False), Opened()
    for one in (opened, unused, other, None):
        with loggers.closing_logger(one):
            pass
    with pytest.raises(RunError), loggers.closing_logger(opened):
        raise RunError("loss became nan")
    assert (opened.ended, unused.ended, other.ended) == ([0, 1], [], [])


def test_a_folder_called_wandb_is_not_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb_of_a_run").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.util.find_spec("wandb_of_a_run") is not None
    assert not loggers._is_installed("wandb_of_a_run")


def test_mlflow_writes_beside_the_run_and_wandb_offline(
    tmp_path: Path, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]
) -> None:
    open_logger("mlflow", tmp_path / "runs" / "a.part")  # which is to take the place of `a`
    open_logger("wandb", tmp_path / "runs" / "a")
    (mlflow, wandb), runs = calls, tmp_path / "runs"
    local = {"tracking_uri": f"sqlite:///{runs}/mlflow.db", "artifact_location": f"{runs}/mlruns"}
    assert mlflow == ("MLFlowLogger", ("recsys-moe",), {"run_name": "a", **local})
    assert wandb == ("WandbLogger", ("a", runs), {"project": "recsys-moe", "offline": True})


def test_only_the_environment_can_name_a_server_and_ask_for_telemetry(
    tmp_path: Path,
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "false")
    open_logger("mlflow", tmp_path / "a")
    assert calls[0][2]["tracking_uri"] == "http://localhost:5000"
    assert calls[0][2]["artifact_location"] is None
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "false"
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
