"""Folders of a stranger: links, pipes and folders where files are expected."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.artifact.run_folder import data_hashes
from recsys_moe.errors import DataError
from recsys_moe.lab.doctor_inputs import look_at_data
from tests.conftest import Command, tells

KEPT = Path(__file__).parents[1] / "formats" / "0.1" / "features"
KINDS = ("pipe", "folder", "link", "loop", "nowhere")
SECRET = "root:x:0:0:a secret line\n"


def kept(folder: str) -> list[str]:
    return sorted(p.relative_to(KEPT / folder).as_posix() for p in (KEPT / folder).rglob("*.*"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """`data`, `run` and a `secret` beside them."""
    (tmp_path / "secret").write_text(SECRET)
    return Path(shutil.copytree(KEPT, tmp_path / "kept"))


def replaced(path: Path, kind: str, secret: Path) -> None:
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to({"link": secret, "loop": path, "nowhere": "nowhere"}[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", kept("data"))
def test_nobody_waits_for_or_shows_what_stands_for_a_file_of_the_data(
    place: Path, file: str, kind: str
) -> None:
    data = place / "data"
    replaced(data / file, kind, place.parent / "secret")
    with pytest.raises(DataError) as error:
        look_at_data(data)
    assert "\n" not in str(error.value) and "root:x" not in str(error.value)
    if kind != "link" and file != "schema.json":
        with pytest.raises(DataError, match=f"{file} .*a file.*prepare"):
            data_hashes(data)


def test_training_does_not_wait_for_a_pipe(command: Command, place: Path) -> None:
    """It reads the test rows only to know their hash."""
    replaced(place / "data" / "test" / "part-00000.parquet", "pipe", place)
    message = command.fails(3, "fit", "--data", place / "data", "--out", place / "new")
    assert tells(message, "test/part-00000.parquet ... a file ... prepare")
    assert not (place / "new").exists()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", kept("run/model"))
def test_no_model_is_read_through_what_stands_for_one_of_its_files(
    place: Path, file: str, kind: str
) -> None:
    replaced(place / "run" / "model" / file, kind, place.parent / "secret")
    with pytest.raises(DataError) as error:
        load_artifact(place / "run")
    assert "\n" not in str(error.value) and "root:x" not in str(error.value)


def test_a_folder_of_data_may_be_a_link_and_so_may_its_splits(
    command: Command, place: Path
) -> None:
    """Caches are made of them, and nothing is written there."""
    data = place / "data"
    (data / "train").rename(place / "elsewhere")
    (data / "train").symlink_to("../elsewhere")
    (place / "linked").symlink_to("data")
    before = {path: path.stat().st_mtime_ns for path in [*data.rglob("*"), *place.glob("else*/*")]}
    words = ["--data", place / "linked", "--out", place / "new", "--dry-run"]
    assert command("fit", *words).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
