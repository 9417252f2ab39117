"""What may be replaced: whole folders of our own with nothing else in them, in no dear place."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.write.writer import check_target
from recsys_moe import folders
from recsys_moe.artifact.export import MODEL
from recsys_moe.artifact.run_folder import RUN
from recsys_moe.errors import ConfigError
from recsys_moe.files import Kind, check_out, check_output, replacing, write_text
from recsys_moe.folders import replace_folder, replacing_folder
from recsys_moe.lab.report.build import REPORT
from tests.conftest import Command, tells

NOTE = Kind("a note", lambda folder: bool((folder / "note").read_text()), ("note", "scans/*.png"))


@pytest.fixture
def note(tmp_path: Path) -> Path:
    (tmp_path / "out" / "scans").mkdir(parents=True)
    (tmp_path / "out" / "note").write_text("ours")
    (tmp_path / "out" / "scans" / "1.png").write_text("ours")
    return tmp_path / "out"


def refused(out: Path, **inputs: Path) -> str:
    with pytest.raises(ConfigError) as error:
        check_out(out, NOTE, True, inputs)
    return str(error.value)


def test_a_whole_folder_of_ours_gives_way_when_told(note: Path) -> None:
    check_out(note, NOTE, True)
    (note / "scans" / "2.png.part").write_text("half-written")
    (note / "scans" / ".2.png-recsys-moe-0123abcd.part").write_text("half-written")
    (note / ".note-recsys-moe-0123abcd.part").write_text("half-written")
    check_out(note, NOTE, True)
    with pytest.raises(ConfigError, match="out exists.*--overwrite"):
        check_out(note, NOTE, False)


def test_what_is_not_of_that_kind_is_named_and_stays(note: Path, tmp_path: Path) -> None:
    (note / "scans" / "thesis.tex").write_text("dear")
    (note / "zoo.txt").write_text("dear")
    first = "out holds scans/thesis.tex, "
    for path in ("zoo.txt", "scans/thesis.tex"):
        assert first.replace("scans/thesis.tex", path) in refused(note)
        (note / path).unlink()
    (tmp_path / "dear").mkdir()
    (note / "link").symlink_to(tmp_path / "dear")
    assert "holds link, " in refused(note)


@pytest.mark.parametrize("content", ["", None])
def test_a_file_of_the_right_name_is_not_enough(note: Path, content: str | None) -> None:
    (note / "note").unlink() if content is None else (note / "note").write_text(content)
    assert tells(refused(note), "out ... not a note")


def test_a_link_a_current_home_or_root_folder_and_a_folder_of_inputs_stay(
    note: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(note)
    assert tells(refused(tmp_path / "link"), "link ... symbolic link")
    for inside in (note, note / "scans"):
        assert f"is or holds --data {inside}" in refused(note, **{"--data": inside})
    assert "--config" in refused(note, **{"--config": tmp_path / "link" / "note"})
    monkeypatch.setenv("HOME", str(note / "scans"))
    assert "is or holds the home folder" in refused(note)
    monkeypatch.chdir(note / "scans")
    for out in (note, Path(), Path(".."), Path("/")):
        assert f"--out {out} is or holds the current folder" in refused(out)


@pytest.mark.parametrize("renames", [0, 1])
def test_an_interrupted_exchange_of_folders_leaves_both(
    note: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    """Before the older one is moved away, and before the newer one gets its name."""
    shutil.copytree(note, tmp_path / "new")
    (tmp_path / "new" / "note").write_text("newer")
    rename, done = os.replace, []

    def stops(source: Path, target: Path) -> None:
        if len(done) == renames and Path(source).name != "previous":
            raise KeyboardInterrupt
        done.append(rename(source, target))

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(os, "replace", stops)
        replace_folder(tmp_path / "new", note)
    assert [(tmp_path / n / "note").read_text() for n in ("out", "new")] == ["ours", "newer"]
    replace_folder(tmp_path / "new", note)
    assert (note / "note").read_text() == "newer"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_fails_while_it_is_written_leaves_the_old_one(note: Path) -> None:
    with pytest.raises(ValueError), replacing_folder(note) as folder:
        (folder / "note").write_text("newer")
        raise ValueError
    assert (note / "note").read_text() == "ours"


@pytest.mark.skipif(sys.platform == "win32", reason="no locks of folders, no SIGKILL")
@pytest.mark.parametrize("moved", [0, 1])
def test_what_a_kill_leaves_is_put_away_by_the_next_start(note: Path, moved: int) -> None:
    """A kill while the new folder is written, and between the two renames."""
    script = f"""
import os, signal
from pathlib import Path
from recsys_moe import folders
from recsys_moe.folders import replacing_folder

folders._swapped = lambda one, other: False
rename = os.replace
def stops_at_the_outer_one(source, target):
    if Path(target).name == "out":
        os.kill(os.getpid(), signal.SIGKILL)
    rename(source, target)
with replacing_folder(Path("out")) as folder, replacing_folder(folder) as inner:
    if not {moved}:
        os.kill(os.getpid(), signal.SIGKILL)
    os.replace = stops_at_the_outer_one
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=note.parent, check=False)
    assert done.returncode == -signal.SIGKILL
    assert note.exists() is not bool(moved)
    assert len([*note.parent.iterdir()]) == 2 - moved
    check_out(note, NOTE, True)
    assert (note / "note").read_text() == "ours"
    assert [path.name for path in note.parent.iterdir()] == ["out"]


def test_a_disk_that_lets_neither_folder_to_its_place_keeps_the_former_one(
    note: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.replace

    def full(source: Path, target: Path) -> None:
        if Path(target).name == "out":
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(folders, "_swapped", lambda one, other: False)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="No space left"):
        patched.setattr(os, "replace", full)
        with replacing_folder(note):
            pass
    assert not note.exists()
    check_out(note, NOTE, True)
    assert (note / "note").read_text() == "ours"
    assert [path.name for path in note.parent.iterdir()] == ["out"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges folders in one step")
def test_on_linux_there_is_no_moment_without_the_folder(
    note: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", lambda *paths: pytest.fail("a rename of its own"))
        with replacing_folder(note) as folder:
            (folder / "note").write_text("newer")
    assert (note / "note").read_text() == "newer"
    assert [path.name for path in note.parent.iterdir()] == ["out"]


@pytest.mark.skipif(sys.platform == "win32", reason="no locks of folders")
def test_scratch_folders_of_the_living_and_of_others_stay(note: Path) -> None:
    (note.parent / ".out-recsys-moe-abcdefgh.part" / "thesis").mkdir(parents=True)
    (note.parent / ".out-2-recsys-moe-abcdefgh.part" / "new").mkdir(parents=True)
    (note.parent / ".out-abcdefgh.part" / "new").mkdir(parents=True)
    (note.parent / "dear" / "new").mkdir(parents=True)
    (note.parent / ".out-recsys-moe-12345678.part").symlink_to(note.parent / "dear")
    (note.parent / ".out-recsys-moe-87654321.part").write_text("a file")
    with replacing_folder(note) as folder:
        check_out(note, NOTE, True)
        assert folder.is_dir()
    assert len([*note.parent.iterdir()]) == 7
    assert (note.parent / "dear" / "new").is_dir()


@pytest.mark.skipif(sys.platform == "win32", reason="no locks of folders")
def test_a_former_folder_stays_hidden_where_something_else_has_come(note: Path) -> None:
    hidden = note.parent / ".out-recsys-moe-abcdefgh.part"
    hidden.mkdir()
    note.rename(hidden / "previous")
    note.mkdir()
    (note / "thesis").write_text("dear")
    assert "exists and is not a note" in refused(note)
    assert (hidden / "previous" / "note").read_text() == "ours"
    shutil.rmtree(note)
    check_out(note, NOTE, True)
    assert (note / "note").read_text() == "ours"
    assert not hidden.exists()


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append((tmp_path / "a").exists()))
    write_text(tmp_path / "a", "text")
    assert synced == [False, True], "the file before its rename, the folder after it"


@pytest.mark.parametrize("kind", [RUN, MODEL, REPORT], ids=lambda kind: kind.name)
@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": 1, "format": 1, "kind": 1}'])
def test_files_of_our_names_make_no_run_model_or_report(
    kind: Kind, text: str, tmp_path: Path
) -> None:
    for name in ("config.yaml", "data.lock.json", "manifest.json", "report.json", "report.html"):
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=f"exists and is not {kind.name}"):
        check_out(tmp_path, kind, True)


def test_a_schema_json_of_another_making_is_no_prepared_data(
    command: Command, prepared: Path, tmp_path: Path
) -> None:
    """`config schema > x/schema.json` makes one, and so does another format."""
    out = shutil.copytree(prepared, tmp_path / "data")
    check_target(out, True)
    schema = json.loads((out / "schema.json").read_text())
    for text in (command("config", "schema").out, json.dumps({**schema, "format_version": 0})):
        (out / "schema.json").write_text(text)
        message = command.fails(2, "prepare", "synthetic", "--out", out, "--overwrite")
        assert "exists and is not prepared data" in message
    assert (out / "users.parquet").is_file()


def test_prepare_never_replaces_what_it_reads(
    command: Command, prepared: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(prepared, tmp_path / "data")
    ids = ["--user", "user_index", "--item", "item_index", "--task", "watch:binary=watch"]
    given = ["--input", out / "train", *ids, "--out", out, "--overwrite"]
    assert f"is or holds --input {out / 'train'}" in command.fails(2, "prepare", "table", *given)
    given = ["--variant", "100k", "--source", out, "--out", out, "--overwrite"]
    assert "is or holds --source" in command.fails(2, "prepare", "movielens", *given)
    assert (out / "schema.json").is_file()


@pytest.mark.parametrize("where", [".", "/", "~"])
def test_no_command_replaces_a_dear_place(
    command: Command, run: Path, prepared: Path, where: str, tmp_path: Path
) -> None:
    command.monkeypatch.chdir(tmp_path)
    command.monkeypatch.setenv("HOME", str(tmp_path))
    out = ["--out", str(tmp_path) if where == "~" else where]
    for words in (
        ["prepare", "synthetic", *out, "--overwrite"],
        ["fit", "--data", prepared, *out, "--overwrite"],
        ["export", run, *out, "--overwrite"],
        ["report", run, *out, "--overwrite"],
        ["compare", "--data", prepared, "--routers", "topk", *out],
        ["tune", "--data", prepared, "--router", "topk", "--trials", 1, *out],
    ):
        assert "is or holds the current folder" in command.fails(2, *words)
    assert not any(tmp_path.iterdir())


def test_a_path_that_goes_through_itself_is_replaced_and_nothing_is_lost(note: Path) -> None:
    """note/../note means nothing while note is away."""
    through = note / ".." / note.name
    with replacing_folder(through) as folder:
        (folder / "note").write_text("new")
    assert (note / "note").read_text() == "new"
    (note.parent / "next").mkdir()
    (note.parent / "next" / "note").write_text("newer")
    replace_folder(note / ".." / "next", through)
    assert (note / "note").read_text() == "newer"
    assert [path.name for path in note.parent.iterdir()] == ["out"]


def test_a_link_that_waits_where_a_file_is_written_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "out.part").symlink_to(tmp_path / "precious")
    write_text(tmp_path / "out", "ours")
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "out").read_text() == "ours"
    assert (tmp_path / "out.part").is_symlink()


def test_of_two_that_write_a_file_at_once_the_last_has_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with replacing(path) as first:
        first.write(b"first")
        with replacing(path) as second:
            second.write(b"second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_what_a_kill_left_of_a_file_is_put_away_and_what_is_being_written_stays(
    tmp_path: Path,
) -> None:
    path, others = tmp_path / "out", tmp_path / ".out.csv-recsys-moe-0123abcd.part"
    left = tmp_path / ".out-recsys-moe-0123abcd.part"
    for one in (left, others):
        one.write_text("half")
    with replacing(path) as stream:
        check_output(path, True)
        assert not left.exists() and others.exists()
        stream.write(b"whole")
    assert path.read_text() == "whole"


def test_a_file_that_is_written_has_the_rights_of_any_new_one(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    write_text(tmp_path / "out", "ours")
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_folder_is_no_output_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a folder"):
        check_output(tmp_path, True)
