"""Folders of a stranger: links, pipes and folders where files are expected."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.errors import DataError
from tests.conftest import Command

KEPT = Path(__file__).parents[1] / "formats" / "0.1" / "features"
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


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "loop", "nowhere"])
@pytest.mark.parametrize("file", kept("data"))
def test_no_command_waits_for_or_shows_what_stands_for_a_file_of_the_data(
    command: Command, place: Path, file: str, kind: str
) -> None:
    data = place / "data"
    replaced(data / file, kind, place.parent / "secret")
    for words in (
        ["fit", "--data", data, "--out", place / "new", "--set", "model.features=all"],
        ["evaluate", place / "run", "--data", data],
        ["doctor", "--data", data],
    ):
        if words[0] == "evaluate" and file.startswith(("train", "val")):
            continue  # it reads neither
        done = command(*words)
        assert done.exit_code == 3, (words, done.err)
        assert "secret line" not in done.out + done.err and "root:x" not in done.out + done.err
    assert not (place / "new").exists()
    assert (place.parent / "secret").read_text() == SECRET


@pytest.mark.parametrize("kind", ["pipe", "folder", "link", "loop", "nowhere"])
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


@pytest.mark.parametrize("name", ["evaluation", "model", "checkpoints"])
def test_what_a_link_in_a_run_leads_to_stays_when_the_run_is_replaced(
    command: Command, place: Path, name: str
) -> None:
    """--overwrite takes the link away, or refuses; it never follows it."""
    mine = place / "mine"
    mine.mkdir()
    for file in ("test.json", "manifest.json", "last.ckpt"):
        (mine / file).write_text("mine")
    shutil.rmtree(place / "run" / name, ignore_errors=True)
    (place / "run" / name).symlink_to(mine)
    words = ["--data", place / "data", "--out", place / "run", "--overwrite"]
    command("fit", *words, "--max-epochs", 1)
    assert [file.read_text() for file in sorted(mine.iterdir())] == ["mine"] * 3
