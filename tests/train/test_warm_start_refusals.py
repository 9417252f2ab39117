"""What a warm start refuses, in one line each."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from recsys_moe.artifact.run_folder import DATA_LOCK, record_run
from recsys_moe.config.settings import parse_config
from recsys_moe.schema import Schema
from recsys_moe.train.warm_start import _log_known_ids
from tests.conftest import Command, tells
from tests.train.test_warm_start import NEW_ITEMS, NEW_USERS, TASKS, folder, table

__all__ = ["folder"]


def words(folder: Path, out: Path, *more: object, **changed: object) -> list[object]:
    paths = {"init-from": folder / "a", "data": folder / "new/data", "out": out, **changed}
    return ["fit", *(word for name, path in paths.items() for word in (f"--{name}", path)), *more]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--set", "model.embedding_dim=16"], "model.embedding_dim must be 8, ... got 16"),
        (["--experts", 8], "model.num_experts must be 4, ... got 8"),
        (["--router", "topk"], "model.router.name must be moesart, ... got topk"),
        (["--k", 3], "model.router.k must be 2, ... got 3"),
        (["--set", "model.tower_dims=[8, 8]"], "model.tower_dims must be [8], "),
        (["--set", "model.biases=false"], "model.biases must be true, "),
        (["--config", "movielens_100k"], "model.embedding_dim must be 8, "),
        (["--resume", "auto"], "--init-from ... --resume auto ... one of them"),
    ],
)
def test_another_model_than_the_old_one_is_refused(
    folder: Path, tmp_path: Path, command: Command, asked: list[object], said: str
) -> None:
    assert tells(command.fails(2, *words(folder, tmp_path / "b", *asked)), said)
    assert not [*tmp_path.iterdir()]


def test_what_does_not_change_the_meaning_of_weights_may_differ(
    folder: Path, tmp_path: Path, command: Command
) -> None:
    more = ["--max-epochs", 1, "--lr", 1e-3, "--seed", 1, "--batch-size", 32]
    more += ["--set", "model.dropout=0.1", "--set", "model.dispatch=dense", "--weights", "1,1"]
    assert command(*words(folder, tmp_path / "b", *more)).exit_code == 0


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"tasks": ("click:binary=watched", TASKS[1])},
            "watch:binary, rating:regression ... got click:binary, rating:regression",
        ),
        ({"tasks": TASKS[:1]}, "got watch:binary; prepare"),
        ({"tasks": TASKS[::-1]}, "got rating:regression, watch:binary"),
        ({"tasks": (TASKS[0], "rating:binary=watched")}, "got watch:binary, rating:binary"),
        ({"ids": ("", "i")}, "user ids ... must be string"),
        ({"ids": ("u", "")}, "item ids ... must be string"),
        ({"unit": 20.0}, "mean of rating ... 1 to 5, ... got"),
        ({"ids": ("v", "j")}, "knows no user and no item of the data"),
    ],
    ids=[
        *("another name", "a task less", "another order", "another kind", "users of another type"),
        *("items of another type", "another unit", "other ids"),
    ],
)
def test_data_of_another_kind_are_refused(
    folder: Path, tmp_path: Path, command: Command, data: dict[str, Any], said: str
) -> None:
    new = table(tmp_path / "c", NEW_USERS, NEW_ITEMS, **data)
    assert tells(command.fails(3, *words(folder, tmp_path / "b", data=new)), said)
    assert not (tmp_path / "b").exists()


def test_other_bounds_of_labels_are_refused(folder: Path, tmp_path: Path, command: Command) -> None:
    new = shutil.copytree(folder / "new/data", tmp_path / "data")
    schema = json.loads((new / "schema.json").read_text())
    schema["tasks"][1] |= {"low": 1.0, "high": 5.0}
    (new / "schema.json").write_text(json.dumps(schema))
    line = command.fails(3, *words(folder, tmp_path / "b", data=new))
    assert tells(line, "rating:regression, as ... got ... rating:regression in 1.0..5.0")


@pytest.mark.parametrize("harm", [Path.unlink, lambda file: file.write_bytes(b"PAR1")])
def test_data_without_readable_ids_are_refused(
    folder: Path, tmp_path: Path, command: Command, harm: Any
) -> None:
    new = shutil.copytree(folder / "new/data", tmp_path / "data")
    harm(new / "users.parquet")
    line = command.fails(3, *words(folder, tmp_path / "b", data=new))
    assert "users.parquet" in line and line.endswith("prepare the data again")
    assert not (tmp_path / "b").exists()


def _cut(model: Path) -> None:
    weights = model / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_cut, "weights.safetensors ... truncated or edited"),
        (shutil.rmtree, "is neither a model folder nor a run folder"),
    ],
    ids=["truncated", "no model"],
)
def test_a_damaged_model_is_refused(
    folder: Path, tmp_path: Path, command: Command, harm: Any, said: str
) -> None:
    damaged = shutil.copytree(folder / "a", tmp_path / "damaged")
    harm(damaged / "model")
    assert tells(command.fails(3, *words(folder, tmp_path / "b", **{"init-from": damaged})), said)
    assert not (tmp_path / "b").exists()


def test_the_run_that_it_starts_from_is_never_overwritten(folder: Path, command: Command) -> None:
    before = (folder / "a/model/manifest.json").read_bytes()
    said = command.fails(2, *words(folder, folder / "a", "--overwrite"))
    assert f"--out {folder / 'a'} is or holds --init-from" in said
    assert (folder / "a/model/manifest.json").read_bytes() == before


def test_an_interrupted_warm_start_does_not_restart_without_its_model(
    folder: Path, tmp_path: Path, command: Command
) -> None:
    """Killed before its first checkpoint, and then taken up without --init-from."""
    out = tmp_path / "b"
    record_run(out, parse_config({}), folder / "new/data", {"folder": "a/model"})
    said = command.fails(2, "fit", "--data", folder / "new/data", "--out", out, "--resume", "auto")
    assert tells(said, "a/model, has no checkpoint yet; ... --init-from")
    assert json.loads((out / DATA_LOCK).read_text())["from"] == {"folder": "a/model"}


def test_ids_are_known_that_the_old_model_was_trained_on(caplog: pytest.LogCaptureFixture) -> None:
    # Of the old model: users 0 to 2 trained, 3 and 4 only in its test rows, 5: unknown to it.
    # The new data have its users 0, 2 and 3, a new one, and the place of unknown ids.
    old = SimpleNamespace(user=SimpleNamespace(trained=3), item=SimpleNamespace(trained=1))
    places = [torch.tensor([0, 2, 3, 5, 5]), torch.tensor([0, 5])]
    with caplog.at_level(logging.INFO, logger="recsys_moe"):
        _log_known_ids(cast(Schema, old), places, "old")
    assert "2 known users, 2 new, 1 dropped; 1 known items, 0 new, 0 dropped" in caplog.text
