"""runs.csv and epochs.csv: a line per finished run and one per epoch of it, as run folders say."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import yaml

from recsys_moe.config.build import unit_of_losses
from recsys_moe.config.settings import parse_config
from recsys_moe.lab.compare.epochs import Epoch, seconds_of_epochs
from recsys_moe.lab.compare.run import compare
from recsys_moe.lab.compare.run_files import total_seconds
from tests.lab.in_process import ASKED, InProcess

LOG = """\
recsys-moe fit --data data/x
epoch 1/3 step 1/40 loss 0.7000, 4 steps/s
epoch 1/3 step 40/40 loss 0.6000, 20 steps/s
epoch 1/3 done in 10.5 s: train/loss 0.6000, val/loss 0.6000
epoch 2/3 step 1/40 loss 0.5900, 4 steps/s
epoch 2/3 done in 30.0 s: train/loss 0.5000, val/loss 0.5500
"""


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_a_line_per_finished_run_has_the_numbers_of_its_folder(comparison: Path) -> None:
    lines = read(comparison / "runs.csv")
    assert [line["run"] for line in lines] == [
        f"{router}-0.9_0.1-seed{seed}" for seed in (0, 1) for router in ("moesart", "topk")
    ]
    for line in lines:
        folder = comparison / "runs" / line["run"]
        test = json.loads((folder / "evaluation" / "test.json").read_text())
        card = json.loads((folder / "model" / "card.json").read_text())["val"]
        assert float(line["loss"]) == round(test["loss"], 6)
        assert float(line["rating.mse"]) == round(test["tasks"]["rating"]["mse"], 6)
        assert int(line["best_epoch"]) == card["epoch"]
        # The evaluation of the kept model and metrics.csv of that epoch agree to float32.
        assert float(line["val.loss"]) == pytest.approx(card["loss"], rel=1e-5)
        auc = card["tasks"]["watch"]["auc"]
        assert float(line["val.watch.auc"]) == pytest.approx(auc, rel=1e-5)
        assert (line["weight.watch"], line["weight.rating"]) == ("0.9", "0.1")
        assert (line["router"], line["visits"], line["epochs"]) == (line["label"], "2", "2")
        assert (line["split"], line["seconds_total"]) == ("test", "")
        config = yaml.safe_load((folder / "config.yaml").read_text())
        assert line["losses"] == unit_of_losses(parse_config(config))


def test_losses_are_relative_with_biases_unless_the_configuration_says_otherwise() -> None:
    for biases, given, unit in (
        (True, {}, "relative"),
        (False, {}, "absolute"),
        (True, {"loss_normalization": "absolute"}, "absolute"),
        (False, {"loss_normalization": "relative"}, "relative"),
    ):
        assert unit_of_losses(parse_config({"model": {"biases": biases}, "optim": given})) == unit


def test_a_line_per_epoch_has_the_losses_of_metrics_csv(comparison: Path) -> None:
    lines = read(comparison / "epochs.csv")
    assert [int(line["epoch"]) for line in lines] == [1, 2] * 4
    for line in lines:
        epochs = read(comparison / "runs" / line["run"] / "metrics.csv")
        epoch = epochs[int(line["epoch"]) - 1]
        assert float(line["train.loss"]) == round(float(epoch["train/loss"]), 6)
        assert float(line["val.rating.mse"]) == round(float(epoch["val/rating/mse"]), 6)
        assert line["seconds"] == ""  # runs of this test write no log


def test_seconds_are_those_of_the_log_and_both_files_the_same_when_written_again(
    comparison: Path, prepared: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(comparison, out)
    (out / "logs").mkdir(exist_ok=True)
    (out / "logs" / "topk-0.9_0.1-seed1.log").write_text(LOG)
    compare(ASKED, prepared, out, executor=InProcess(fails="-"))  # nothing has to run
    *_, line = read(out / "runs.csv")
    # median and sum of 10.5 and 30 seconds
    assert (line["seconds_per_epoch"], line["seconds_total"]) == ("20.25", "40.5")
    assert [line["seconds"] for line in read(out / "epochs.csv")] == [*[""] * 6, "10.5", "30.0"]
    before = [(out / name).read_bytes() for name in ("runs.csv", "epochs.csv")]
    compare(ASKED, prepared, out, executor=InProcess(fails="-"))
    assert [(out / name).read_bytes() for name in ("runs.csv", "epochs.csv")] == before


def test_an_epoch_that_was_continued_inside_has_no_time() -> None:
    assert seconds_of_epochs(LOG) == {1: 10.5, 2: 30.0}
    inside = "continuing from last.ckpt: 2 epochs are finished\nepoch 3/3 step 21/40 loss 0.5, 9\n"
    whole = inside.replace("step 21/", "step 1/")
    done = "epoch 3/3 done in 15.0 s: val/loss 0.5400\n"
    assert seconds_of_epochs(LOG + inside + done) == {1: 10.5, 2: 30.0}
    assert seconds_of_epochs(LOG + whole + done) == {1: 10.5, 2: 30.0, 3: 15.0}


def test_an_epoch_without_a_time_counts_as_the_median_in_the_total() -> None:
    epochs = [Epoch(n, seconds, {}) for n, seconds in enumerate([10.0, None, 30.0, 14.0], 1)]
    assert total_seconds(epochs) == 10 + 14 + 30 + 14  # the median of 10, 14, 30 is 14
    assert total_seconds(epochs[1:2]) is None
