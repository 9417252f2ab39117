"""Folders that earlier versions wrote are read and give the scores that they gave then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.conftest import Command
from tests.formats.make import scores

HERE = Path(__file__).parent
KEPT = sorted(path.parent for path in HERE.glob("*/*/expected.json"))
"""`VERSION/ids` and `VERSION/features`; see make.py."""


def test_there_are_folders_of_ids_and_of_features() -> None:
    assert {path.name for path in KEPT} == {"ids", "features"}


@pytest.fixture(params=KEPT, ids=lambda path: str(path.relative_to(HERE)))
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy, of which nothing can be lost."""
    return Path(shutil.copytree(request.param, tmp_path / "kept"))


def test_a_kept_model_gives_the_scores_that_it_gave(kept: Path) -> None:
    expected = json.loads((kept / "expected.json").read_text())
    for name, values in scores(kept / "run" / "model").items():
        assert values == pytest.approx(expected[name], abs=1e-5)


def test_kept_data_train_a_new_model(kept: Path, tmp_path: Path, command: Command) -> None:
    done = command("fit", "--data", kept / "data", "--out", tmp_path / "new", "--max-epochs", 1)
    assert done.exit_code == 0, done.err


def test_a_kept_checkpoint_is_continued(kept: Path, command: Command) -> None:
    run = kept / "run"
    shutil.rmtree(run / "model")
    settings = ("--config", run / "config.yaml", "--resume", "auto", "--max-epochs", 13)
    done = command("fit", "--data", kept / "data", "--out", run, *settings)
    assert done.exit_code == 0, done.err
    epochs = [line.split(",")[0] for line in (run / "metrics.csv").read_text().splitlines()]
    assert epochs[-1] == "13"
