"""`fit --overwrite`: the older run stays until the new one is complete."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from recsys_moe.artifact.run_folder import begin_run, place_of
from recsys_moe.cli.configuration import run_of
from recsys_moe.errors import ConfigError, Interrupted, RunError
from recsys_moe.train import fit as fitting
from recsys_moe.train.checkpoints import Checkpoints
from recsys_moe.train.fit import fit
from recsys_moe.train.loader import RecDataModule
from tests.conftest import Command, tells
from tests.train.test_resume import after_signal, config, results

ROOT = Path(__file__).parents[2]
STEP = "on_train_batch_end"
OTHER = config(trainer={"seed": 1})


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*.*")}


@pytest.fixture
def out(run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(run, tmp_path / "a")


@pytest.fixture(scope="module")
def straight(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    place = tmp_path_factory.mktemp("straight") / "run"
    fit(OTHER, prepared, place)
    return results(place)


@pytest.mark.parametrize("moment", ["inside an epoch", "before the first step"])
def test_an_interrupted_replacement_leaves_the_older_run_and_is_continued(
    out: Path,
    prepared: Path,
    straight: list[bytes],
    moment: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before, part = files(out), out.with_name("a.part")
    with monkeypatch.context() as patched, pytest.raises(Interrupted) as stopped:
        if moment == "inside an epoch":
            patched.setattr(Checkpoints, STEP, after_signal(getattr(Checkpoints, STEP), 7))
        else:
            load = RecDataModule.train_dataloader
            patched.setattr(RecDataModule, "train_dataloader", after_signal(load, 1))
        fit(OTHER, prepared, out, overwrite=True)
    assert files(out) == before and stopped.value.exit_code == 128 + signal.SIGTERM
    assert f"is saved in {part}/checkpoints: continue with --resume auto" in str(stopped.value)
    with pytest.raises(ConfigError, match=r"a.part is an unfinished run that would replace it"):
        fit(OTHER, prepared, out)
    with caplog.at_level(logging.INFO):
        fit(OTHER, prepared, out, resume="auto")
    assert tells(caplog.text, f"{part}; {out} stays")
    assert results(out) == straight
    assert [path.name for path in out.parent.iterdir()] == ["a"]


def test_a_replacement_that_was_killed_at_once_or_at_its_end_is_continued(
    out: Path, prepared: Path, straight: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    part = out.with_name("a.part")
    begin_run(part, out, OTHER, prepared, resume=None, checkpoint=None)

    def killed(*unused: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(fitting, "end_run", killed)
        fit(OTHER, prepared, out, resume="auto")
    assert results(part) == straight
    shutil.rmtree(out)  # as between the two renames
    with pytest.raises(ConfigError, match=r"a.part is an unfinished run that would replace it"):
        fit(OTHER, prepared, out)
    fit(OTHER, prepared, out, resume="auto")
    assert results(out) == straight and not part.exists()


def test_overwriting_again_begins_anew(
    out: Path, prepared: Path, straight: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(Checkpoints, STEP, after_signal(getattr(Checkpoints, STEP), 7))
        fit(config(trainer={"seed": 2}), prepared, out, overwrite=True)
    fit(OTHER, prepared, out, overwrite=True)
    assert results(out) == straight and not out.with_name("a.part").exists()


@pytest.mark.parametrize("place", ["a", "a.part"])
def test_files_of_others_in_a_run_are_named_before_training(
    out: Path, prepared: Path, place: str
) -> None:
    begin_run(out.with_name("a.part"), out, OTHER, prepared, resume=None, checkpoint=None)
    (out.with_name(place) / "notes.txt").write_text("dear")
    with pytest.raises(ConfigError, match=f"{place} holds notes.txt, "):
        fit(OTHER, prepared, out, overwrite=True)
    assert (out.with_name(place) / "notes.txt").read_text() == "dear"


def test_a_file_that_came_while_it_trained_stays_and_so_does_the_new_run(
    out: Path, prepared: Path, straight: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = RecDataModule.train_dataloader

    def noted(module: RecDataModule) -> object:
        (out / "notes.txt").write_text("dear")
        return load(module)

    monkeypatch.setattr(RecDataModule, "train_dataloader", noted)
    part = out.with_name("a.part")
    with pytest.raises(RunError, match=f"holds notes.txt.* complete in {part}"):
        fit(OTHER, prepared, out, overwrite=True)
    assert results(part) == straight and (out / "notes.txt").read_text() == "dear"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("resume", [None, "auto"])
@pytest.mark.parametrize("there", ["nothing", "a run", "a run and a part"])
def test_all_processes_find_the_place_that_the_first_may_have_made_already(
    run: Path, prepared: Path, tmp_path: Path, overwrite: bool, resume: str | None, there: str
) -> None:
    out = tmp_path / "a"
    if "run" in there:
        shutil.copytree(run, out)
    if "part" in there:
        begin_run(out.with_name("a.part"), out, OTHER, prepared, resume=None, checkpoint=None)
    place = place_of(out, overwrite, resume)
    assert place in (out, out.with_name("a.part"))
    try:
        begin_run(place, out, OTHER, prepared, resume=resume, checkpoint=None)
    except ConfigError:
        assert not overwrite or place == out
    assert place_of(out, overwrite, resume) == place


@pytest.mark.slow
def test_two_processes_replace_a_run(out: Path, prepared: Path) -> None:
    sets = ["model.embedding_dim=8", "model.expert_dim=16", "model.tower_dims=[8]"]
    words = ["--set", "trainer.accelerator=cpu", "--devices", "2", "--max-epochs", "1"]
    words += [word for setting in sets for word in ("--set", setting)]
    command = [sys.executable, "-m", "recsys_moe.cli", "fit", "--data", str(prepared)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    words += ["--out", str(out), "--overwrite"]
    done = subprocess.run([*command, *words], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("stays until it is complete") == 1
    assert "devices: 2" in (out / "config.yaml").read_text()
    assert [path.name for path in out.parent.iterdir()] == ["a"]


def test_a_configuration_in_the_run_that_gives_way_is_not_read(
    out: Path, prepared: Path, command: Command
) -> None:
    words = ["--data", prepared, "--config", out / "config.yaml", "--out", out, "--overwrite"]
    assert "is or holds --config" in command.fails(2, "fit", *words)
    assert (out / "model").is_dir()


def test_an_interrupted_replacement_goes_on_with_its_own_settings(tmp_path: Path) -> None:
    """`fit --resume auto` without settings takes those of OUT.part, which it continues."""
    out, part = tmp_path / "run", tmp_path / "run.part"
    for run in (out, part):
        run.mkdir()
        (run / "config.yaml").touch()
        (run / "data.lock.json").write_text('{"files": {"schema.json": ""}}')
    assert run_of("auto", out) == part == place_of(out, False, "auto")
    (part / "config.yaml").unlink()
    assert run_of("auto", out) == out
    assert run_of(str(out / "checkpoints" / "last.ckpt"), out) == out
    assert run_of(None, out) is None
