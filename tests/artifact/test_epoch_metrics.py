"""metrics.csv: read in one way, wherever its numbers are wanted."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from recsys_moe.artifact.epoch_metrics import read_epochs, validation_losses
from recsys_moe.artifact.monitor import Monitor
from recsys_moe.errors import DataError
from recsys_moe.lab.tune.results import Kept, kept

HEAD = "epoch,train/loss,val/loss"


def written(folder: Path, *lines: str) -> Path:
    path = folder / "metrics.csv"
    path.write_text("\n".join([*lines, ""]))
    return path


def test_of_an_epoch_that_stands_twice_the_last_row_counts(tmp_path: Path) -> None:
    path = written(tmp_path, HEAD, "1,3,2", "2,9,9", "2,2,1")
    assert validation_losses(read_epochs(path)) == {1: 2, 2: 1}


def test_a_loss_that_is_not_a_number_is_no_damage(tmp_path: Path) -> None:
    epochs = read_epochs(written(tmp_path, HEAD, "1,nan,0.1", "2,0.30000000000000004,nan"))
    assert math.isnan(epochs[1]["train/loss"] or 0.0)
    assert epochs[2]["train/loss"] == 0.1 + 0.2
    assert math.isnan(validation_losses(epochs)[2])


def test_a_metric_that_is_undefined_is_none_and_chooses_no_epoch(tmp_path: Path) -> None:
    rows = ["1,2,0.5,", "2,1,0.4,0.7", "3,1,0.3,"]
    path = written(tmp_path, f"{HEAD},val/watch/auc", *rows)
    assert [row["val/watch/auc"] for row in read_epochs(path).values()] == [None, 0.7, None]
    assert kept(tmp_path, Monitor("watch/auc", "max")) == Kept({1: 0.5, 2: 0.4, 3: 0.4}, 2)


@pytest.mark.parametrize(
    "lines",
    [
        ("epoch,val/loss", "1,2"),
        *((HEAD, row) for row in ("x,1,2", "1,x,2", "1,2", ",1,2", "1,1,", "1,1,2,3", '1,1,"2')),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, lines: tuple[str, ...]) -> None:
    path = written(tmp_path, *lines)
    with pytest.raises(DataError, match=r"metrics\.csv is damaged: .*"):
        read_epochs(path)


def test_a_file_of_another_encoding_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(HEAD.encode() + b"\n1,2,\xff\n")
    with pytest.raises(DataError, match=r"metrics\.csv is damaged"):
        read_epochs(path)
