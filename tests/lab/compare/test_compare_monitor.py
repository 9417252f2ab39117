"""compare with trainer.monitor: the epoch of each run is the one that the metric chose."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from recsys_moe.errors import ConfigError
from recsys_moe.lab.compare.run import compare
from tests.conftest import TINY_MODEL
from tests.lab.in_process import ASKED, InProcess
from tests.train.test_monitor import script

TRAINER = {"max_epochs": 3, "batch_size": 512, "monitor": "watch/auc"}
REQUEST = replace(
    ASKED, routers=["topk"], seeds=[0], typed={"model": TINY_MODEL, "trainer": TRAINER}
)


def test_the_best_epoch_is_that_of_the_monitored_metric_and_not_of_the_lowest_loss(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, loss=[0.3, 0.2, 0.1], watch_auc=[0.6, 0.8, 0.7])
    assert compare(REQUEST, prepared, tmp_path / "out", executor=InProcess()).failures == []
    (run,) = csv.DictReader((tmp_path / "out" / "runs.csv").read_text().splitlines())
    assert (run["best_epoch"], run["val.watch.auc"], run["val.loss"]) == ("2", "0.8", "0.2")
    (record,) = json.loads((tmp_path / "out" / "results.json").read_text())["runs"]
    assert record["monitor"] == "watch/auc"
    assert "the best validation watch/auc" in (tmp_path / "out" / "table.md").read_text()


def test_a_metric_that_the_data_lack_is_refused_before_anything_is_trained(
    prepared: Path, tmp_path: Path
) -> None:
    asked = replace(REQUEST, typed={"trainer": {**TRAINER, "monitor": "watch.auc"}})
    with pytest.raises(ConfigError, match="loss, watch/auc, .*, got 'watch.auc'"):
        compare(asked, prepared, tmp_path / "out", executor=InProcess())
    assert not (tmp_path / "out").exists()
