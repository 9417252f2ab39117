"""What `fit` proposes for a task behind its baseline follows from the labels and the epochs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.artifact.remedies import remedies
from recsys_moe.config.settings import parse_config
from recsys_moe.schema import Feature, Schema, Task
from recsys_moe.train.fit import fit
from tests.conftest import TINY_MODEL

RATING = {"labelled": 100, "mean": 3.5, "std": 1.1, "min": 1.0, "max": 5.0}


def schema_of(counts: dict[str, float]) -> Schema:
    return Schema(
        name="log",
        protocol="paper",
        vocabulary="all",
        user=Feature(name="user", column="user_index", size=10, id_type="int64"),
        item=Feature(name="item", column="item_index", size=10, id_type="int64"),
        tasks=(
            Task(name="watch", kind="binary", column="watch"),
            Task(name="seconds", kind="regression", column="seconds"),
        ),
        rows={"train": 100, "val": 10, "test": 10},
        labels={"train": {"seconds": counts}},
    )


def said(
    mse: list[float],
    *,
    own: float,
    auc: list[float] | None = None,
    counts: dict[str, float] = RATING,
    monitor: str = "loss",
    **model: Any,
) -> list[str]:
    """For epochs with these MSE, where the mean has 1.0."""
    result = {
        "split": "val",
        "tasks": {"watch": {"auc": 0.8}, "seconds": {"mse": own}},
        "baselines": {"watch": {"popularity": {"auc": 0.7}}, "seconds": {"mean": {"mse": 1.0}}},
    }
    epochs = {n: {"val/loss": 1.0, "val/seconds/mse": one} for n, one in enumerate(mse, 1)}
    for n, one in enumerate([0.8] * len(mse) if auc is None else auc, 1):
        epochs[n]["val/watch/auc"] = one
    trainer = {"max_epochs": 9, "monitor": monitor}
    config = parse_config({"model": model, "trainer": trainer, "optim": {"lr": 0.004}})
    return [*remedies(result, epochs, config, schema_of(counts))]


def test_a_task_ahead_of_its_baseline_needs_nothing() -> None:
    assert said([0.9] * 9, own=0.9) == []


def test_heavy_tails_are_named_first() -> None:
    seconds = {"labelled": 100, "mean": 30.0, "std": 60.0, "min": 0.1, "max": 4000.0}
    (line,) = said([1.1] * 9, own=1.1, counts=seconds)
    assert line == (
        "seconds: labels have mean 30, deviation 60 and maximum 4e+03; "
        "try kind duration (count for whole numbers)"
    )
    (line,) = said([1.1] * 9, own=1.1, counts={**seconds, "min": 0.0})
    assert line.endswith("; try kind count for whole numbers")  # duration has no 0
    # A deviation of 1.5 means is not yet heavy, and negative labels are no durations.
    assert "duration" not in said([1.1] * 9, own=1.1, counts={**seconds, "std": 45.0})[0]
    assert "duration" not in said([1.1] * 9, own=1.1, counts={**seconds, "min": -1.0})[0]


@pytest.mark.parametrize(
    ("mse", "end"),
    [
        ([1.2, 0.95, 1.1], "epoch 2 had MSE 0.9500; try trainer.monitor=seconds/mse"),
        ([1.05, *[1.2] * 7], "epoch 1 of 8 had the best MSE 1.0500; try optim.lr=0.001"),
        ([1.9 - 0.1 * n for n in range(9)], "; try --max-epochs 18, or more --minutes"),
    ],
)
def test_the_epochs_tell_what_to_change(mse: list[float], end: str) -> None:
    (line,) = said(mse, own=1.3)
    assert line.startswith("seconds: epoch ") and line.endswith(end)


def test_an_epoch_that_was_ahead_is_named_beside_the_labels() -> None:
    seconds = {"labelled": 100, "mean": 30.0, "std": 60.0, "min": 0.1, "max": 4000.0}
    (line,) = said([0.9, 1.1], own=1.1, counts=seconds)
    assert line.startswith(
        "seconds: epoch 1 had MSE 0.9000; try trainer.monitor=seconds/mse; labels"
    )


def test_an_epoch_in_which_another_task_was_behind_is_not_offered() -> None:
    """Watch has an AUC of .8 now, popularity .7."""
    assert "monitor" in said([0.9, 1.1], own=1.1, auc=[0.71, 0.8])[0]
    assert said([0.9, 1.1], own=1.1, auc=[0.69, 0.8], biases=True) == []
    assert said([0.9, 1.1], own=1.1, auc=[], biases=True) == []  # not known


def test_a_monitor_that_is_set_is_not_offered_again_and_nan_is_no_best_epoch() -> None:
    assert said([0.9, 1.1], own=1.1, monitor="seconds/mse", biases=True) == []
    (line,) = said([math.nan, 0.9, 1.2], own=1.2)
    assert line.startswith("seconds: epoch 2 had MSE 0.9000")


def test_means_are_offered_where_there_are_none() -> None:
    middle = [1.3, 1.2, 1.1, 1.2]
    (line,) = said(middle, own=1.3, biases=False)
    assert "model.biases=true" in line
    assert said(middle, own=1.3, biases=True) == []
    assert said(middle, own=1.3, biases=False, user_ids=False) == []


def test_without_epochs_or_labels_nothing_is_said() -> None:
    assert said([], own=1.3) == []


def test_fit_says_it(prepared: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two epochs from 0 are behind the means of users and items."""
    settings = {"model": {**TINY_MODEL, "biases": False}, "trainer": {"max_epochs": 2}}
    fit(settings, prepared, tmp_path / "run")
    assert "rating: epoch 2, the last, had the best MSE" in caplog.text
    assert "try --max-epochs 4, or more --minutes" in caplog.text
