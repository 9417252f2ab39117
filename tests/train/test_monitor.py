"""trainer.monitor: which epoch a run keeps, when it stops, and that a resumed run keeps it."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.artifact.monitor import BY_LOSS, Monitor, find_monitor
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.errors import ConfigError, UserError
from recsys_moe.schema import Schema
from recsys_moe.train.fit import fit
from recsys_moe.train.module import RecModule
from tests.conftest import TINY_MODEL, Command

DEFINED = "loss, watch/auc, watch/bce, watch/ece, rating/mse, rating/rmse, rating/mae"


def config(**trainer: Any) -> Config:
    settings = {"max_epochs": 3, "batch_size": 512, **trainer}
    return parse_config({"model": TINY_MODEL, "trainer": settings})


def script(monkeypatch: pytest.MonkeyPatch, **columns: list[float]) -> None:
    """Let the validation find these values, one per epoch; `watch_auc` is val/watch/auc."""
    log = RecModule.log

    def scripted(self: RecModule, name: str, value: Any, **options: Any) -> None:
        values = columns.get(name.removeprefix("val/").replace("/", "_"))
        found = values[self.current_epoch] if values and name.startswith("val/") else value
        log(self, name, found, **options)

    monkeypatch.setattr(RecModule, "log", scripted)


def epochs(run: Path) -> int:
    return len(list(csv.DictReader((run / "metrics.csv").read_text().splitlines())))


@pytest.mark.parametrize(
    ("monitor", "kept"), [("loss", 3), ("watch/auc", 2), ("rating/mse", 1), ("watch/ece", 2)]
)
def test_the_kept_epoch_is_the_best_of_the_monitored_metric(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, monitor: str, kept: int
) -> None:
    script(
        monkeypatch,
        loss=[0.3, 0.2, 0.1],
        watch_auc=[0.6, 0.8, 0.7],
        rating_mse=[1.0, 3.0, 2.0],
        watch_ece=[0.3, 0.1, 0.2],
    )
    result = fit(config(monitor=monitor), prepared, tmp_path / "run")
    card = json.loads((tmp_path / "run" / "model" / "card.json").read_text())
    for said in (result, card["val"]):
        assert (said["epoch"], said["monitor"]) == (kept, monitor)


@pytest.mark.parametrize(("monitor", "trained"), [("loss", 4), ("watch/auc", 3)])
def test_patience_counts_epochs_without_a_better_monitored_metric(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, monitor: str, trained: int
) -> None:
    script(monkeypatch, loss=[0.4, 0.3, 0.2, 0.1], watch_auc=[0.6, 0.7, 0.7, 0.8])
    fit(config(monitor=monitor, max_epochs=4, patience=1), prepared, tmp_path / "run")
    assert epochs(tmp_path / "run") == trained


@pytest.mark.parametrize("monitor", ["loss", "watch/auc"])
def test_a_resumed_run_keeps_its_best(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, monitor: str
) -> None:
    """The second epoch is worse than the first one, which was before the stop."""
    script(monkeypatch, loss=[0.1, 0.3, 0.2], watch_auc=[0.8, 0.6, 0.7])
    fit(config(monitor=monitor, max_epochs=1), prepared, tmp_path / "run")
    best = tmp_path / "run" / "checkpoints" / "best.ckpt"
    before = best.read_bytes()
    result = fit(config(monitor=monitor), prepared, tmp_path / "run", resume="auto")
    assert (epochs(tmp_path / "run"), result["epoch"]) == (3, 1)
    assert best.read_bytes() == before


@pytest.mark.parametrize("monitor", ["loss", "watch/auc"])
def test_of_equal_epochs_the_first_is_kept(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, monitor: str
) -> None:
    script(monkeypatch, loss=[0.3, 0.2, 0.2], watch_auc=[0.6, 0.8, 0.8])
    assert fit(config(monitor=monitor), prepared, tmp_path / "run")["epoch"] == 2


def test_fit_prints_which_metric_chose_the_epoch(
    prepared: Path, tmp_path: Path, command: Command
) -> None:
    sets = {"model": json.dumps(TINY_MODEL), "trainer.monitor": "rating/mse"}
    flags = [f"--set={key}={value}" for key, value in sets.items()]
    done = command("fit", "--data", prepared, "--out", tmp_path / "run", "--max-epochs", 1, *flags)
    assert "best epoch 1 by rating/mse on val" in done.out


def test_a_metric_that_the_data_do_not_have_is_refused_with_those_that_they_have(
    prepared: Path, tmp_path: Path, command: Command
) -> None:
    flags = ["--data", prepared, "--set", "trainer.monitor=watch/mse"]
    for more in (["--out", tmp_path / "run"], ["--out", tmp_path / "run", "--dry-run"]):
        said = command.fails(2, "fit", *flags, *more)
        assert "trainer.monitor must be a metric of " in said
        assert said.endswith(f"{DEFINED}, got 'watch/mse'")
    assert not (tmp_path / "run").exists()


def test_metrics_that_the_labels_of_validation_cannot_give_are_refused(prepared: Path) -> None:
    schema, none = Schema.load(prepared), {"labelled": 0, "mean": 0.0, "positive": 0}
    one_class = {"labelled": 9, "positive": 9}
    for watch, name, said in (
        (one_class, "watch/auc", "loss, watch/bce, watch/ece, got 'watch/auc'"),
        (none, "loss", "must .*got none"),
    ):
        labels = {"val": {"watch": watch, "rating": none}}
        with pytest.raises(UserError, match=said):
            find_monitor(name, replace(schema, labels=labels))


def test_tasks_without_any_weight_are_refused(prepared: Path, tmp_path: Path) -> None:
    weights = {"watch": {"weight": 0}, "rating": {"weight": 0}}
    with pytest.raises(ConfigError, match=r"a weight must be above 0.*tasks.watch.weight=1"):
        fit({"model": TINY_MODEL, "tasks": weights}, prepared, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_name_says_which_way_is_better(prepared: Path) -> None:
    schema = Schema.load(prepared)
    found = {name: find_monitor(name, schema).direction for name in DEFINED.split(", ")}
    assert [name for name, direction in found.items() if direction == "max"] == ["watch/auc"]


def test_the_first_best_epoch_is_that_of_the_direction_and_never_a_nan() -> None:
    values = {1: float("nan"), 2: 0.5, 3: 0.7, 4: 0.7, 5: 0.5}
    assert Monitor("watch/auc", "max").best_epoch(values) == 3
    assert BY_LOSS.best_epoch(values) == 2
    assert BY_LOSS.best_epoch({1: float("nan")}) is None
