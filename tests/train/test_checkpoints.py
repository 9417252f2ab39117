"""Checkpoints: whole files, a good one at any moment, and what a failing disk or file leads to."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys_moe import files
from recsys_moe.artifact.run_folder import record_run
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.errors import ConfigError, RunError
from recsys_moe.files import replacing
from recsys_moe.train.checkpoints import Checkpoints, WholeFiles
from recsys_moe.train.fit import fit
from recsys_moe.train.processes.signals import StopSignals
from recsys_moe.train.resume import CHECKPOINT_FORMAT, FORMAT, find_checkpoint, read_checkpoint
from tests.conftest import TINY_MODEL


def config(**trainer: Any) -> Config:
    settings = {"max_epochs": 2, "batch_size": 64, **trainer}
    return parse_config({"model": TINY_MODEL, "trainer": settings})


def whole(number: int) -> dict[str, Any]:
    """The smallest checkpoint that is read as one; `number` tells it from others."""
    progress = {"epoch_progress": {"current": {"processed": number}}}
    parameters = {"config": {}, "schema_json": ""}
    state = {"loops": {"fit_loop": progress}, "hyper_parameters": parameters}
    return {**state, FORMAT: CHECKPOINT_FORMAT}


@pytest.fixture()
def folder(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


def newest(folder: Path) -> int:
    saved = find_checkpoint(folder.parent, "auto")
    assert saved is not None
    return saved.finished


def exit_code(work: Callable[..., None], arguments: tuple[Any, ...]) -> int | None:
    """Of a process forked for this."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    process.join(30)
    return process.exitcode


CALLS = ("fsync", "replace", "open", "close")


def save_and_die(folder: Path, die_at: int) -> None:
    """Save checkpoint 3 and end without any clean-up at the n-th call of the system."""
    left = iter(range(die_at, -1, -1))

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def or_die(*args: Any) -> Any:
            if next(left) == 0:
                os._exit(9)
            return call(*args)

        return or_die

    for name in CALLS:
        setattr(files.os, name, dying(getattr(os, name)))
    WholeFiles().save_checkpoint(whole(3), folder / "last.ckpt")
    os._exit(0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # the child uses none
def test_a_death_between_any_two_calls_leaves_the_old_or_the_new_checkpoint(folder: Path) -> None:
    """A new file is opened and closed, opened to be locked and synced; two renames; open, fsync and
    close of the folder, and the close that unlocks: 10 calls."""
    found = []
    for die_at in range(11):
        for number in (1, 2):
            WholeFiles().save_checkpoint(whole(number), folder / "last.ckpt")
        assert exit_code(save_and_die, (folder, die_at)) == (9 if die_at < 10 else 0)
        found.append(newest(folder))
    assert found == [2] * 6 + [3] * 5


def test_what_was_last_is_kept_as_previous(folder: Path) -> None:
    for number in (1, 2, 3):
        WholeFiles().save_checkpoint(whole(number), folder / "last.ckpt")
    kept = {path.name: read_checkpoint(path).finished for path in folder.iterdir()}
    assert kept == {"last.ckpt": 3, "previous.ckpt": 2}


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut off": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "text": lambda path: path.write_text("no checkpoint"),
    "another archive": lambda path: torch.save({"loops": {}}, path),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(
    folder: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    for number in (1, 2):
        WholeFiles().save_checkpoint(whole(number), folder / "last.ckpt")
    DAMAGES[damage](folder / "last.ckpt")
    with caplog.at_level(logging.WARNING):
        assert newest(folder) == 1
    assert f"{folder / 'last.ckpt'} cannot be read as a checkpoint of fit" in caplog.text
    DAMAGES[damage](folder / "previous.ckpt")
    with pytest.raises(ConfigError, match="no checkpoint in .* can be read.*--o"):
        find_checkpoint(folder.parent, "auto")


@pytest.mark.parametrize("version", [None, 0, CHECKPOINT_FORMAT + 1])
def test_a_checkpoint_of_another_format_is_refused_by_its_number(
    folder: Path, version: int | None
) -> None:
    state = whole(1) | {FORMAT: version}
    WholeFiles().save_checkpoint(state, folder / "last.ckpt")
    message = f"last.ckpt is a checkpoint of format {version}; .* continues format 1 only"
    with pytest.raises(ConfigError, match=message):
        find_checkpoint(folder.parent, str(folder / "last.ckpt"))


def test_a_flipped_bit_in_a_weight_is_found(run: Path, tmp_path: Path) -> None:
    damaged = shutil.copy(run / "checkpoints" / "last.ckpt", tmp_path / "last.ckpt")
    content = bytearray(damaged.read_bytes())
    weight = torch.load(damaged, weights_only=True)["state_dict"]["model.user_embedding.weight"]
    content[content.find(weight.numpy().tobytes())] ^= 1
    damaged.write_bytes(content)
    torch.load(damaged, weights_only=True)  # sees nothing
    with pytest.raises(ConfigError, match="data/.* is damaged.*--resume"):
        find_checkpoint(tmp_path, str(damaged))


def full_disk(name: str) -> Callable[..., Any]:
    """`replacing`, on a disk without room for files called `name`."""

    def limited(path: Path, *, keep: Path | None = None) -> Any:
        if path.name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return replacing(path, keep=keep)

    return limited


def test_a_full_disk_is_a_warning_where_the_result_does_not_need_it(
    prepared: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr("recsys_moe.train.checkpoints.replacing", full_disk("last.ckpt"))
    fit(config(), prepared, tmp_path / "run")
    assert "last.ckpt cannot be written: No space left on device; training continues" in caplog.text
    weights = Path("model", "weights.safetensors")
    assert (tmp_path / "run" / weights).read_bytes() == (run / weights).read_bytes()


def test_a_full_disk_ends_the_run_where_the_result_needs_it_and_nothing_is_lost(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without user and item biases the second epoch is better than the first."""
    out, whole = tmp_path / "run", tmp_path / "whole"
    one, two = (
        parse_config(
            {
                "model": {**TINY_MODEL, "biases": False},
                "trainer": {"max_epochs": epochs, "batch_size": 64},
            }
        )
        for epochs in (1, 2)
    )
    assert fit(two, prepared, whole)["epoch"] == 2
    fit(one, prepared, out)
    with monkeypatch.context() as full:
        full.setattr("recsys_moe.train.checkpoints.replacing", full_disk("best.ckpt"))
        with pytest.raises(RunError, match="best.ckpt cannot be written: No space .* make room"):
            fit(two, prepared, out, resume="auto")
    fit(two, prepared, out, resume="auto")
    for name in ("model/weights.safetensors", "metrics.csv"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_metrics_that_cannot_be_written_end_the_run_in_words(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "replacing", full_disk("metrics.csv"))
    with pytest.raises(RunError, match="metrics.csv: No space left on device"):
        fit(config(), prepared, tmp_path / "run")


def save_within_limit(path: Path, content: dict[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    io = WholeFiles()
    io.save_checkpoint(content, path)
    os._exit(io.failures[path.name].errno or 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # the child uses none
def test_a_write_that_the_system_cuts_off_leaves_no_half_file(folder: Path) -> None:
    """A real limit on the size of files, which is how a full disk looks to `write`."""
    WholeFiles().save_checkpoint(whole(1), folder / "last.ckpt")
    arguments = (folder / "last.ckpt", {"x": torch.zeros(100_000)})
    assert exit_code(save_within_limit, arguments) == errno.EFBIG
    assert newest(folder) == 1 and [path.name for path in folder.iterdir()] == ["last.ckpt"]


def test_a_second_signal_ends_the_process_at_once_but_one_that_comes_twice_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    stop = StopSignals()
    before = signal.getsignal(signal.SIGTERM)
    with stop.listening():
        for _ in range(2):  # as `timeout` sends it, to the process and to its group
            os.kill(os.getpid(), signal.SIGTERM)
        assert (stop.number, ended) == (signal.SIGTERM, [])
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + 2)
        os.kill(os.getpid(), signal.SIGINT)
    assert ended == [128 + signal.SIGINT]
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_checkpoint_is_written_every_so_many_steps_and_leftovers_go(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[str, int]] = []
    save = Checkpoints._save

    def spy(own: Checkpoints, trainer: Any, name: str) -> bool:
        steps.append((name, trainer.global_step))
        return save(own, trainer, name)

    monkeypatch.setattr(Checkpoints, "_save", spy)
    left = tmp_path / "run" / "checkpoints" / "last.ckpt.part"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    settings = config(max_epochs=1, checkpoint_every_n_steps=10)
    record_run(tmp_path / "run", settings, prepared)
    fit(settings, prepared, tmp_path / "run", resume="auto")
    end = steps[-1][1]
    assert end > 20 and not left.exists()
    inside = [("last.ckpt", step) for step in range(10, end, 10)]
    assert steps == [*inside, ("best.ckpt", end), ("last.ckpt", end)]
