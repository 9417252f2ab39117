"""Stop and continue: a run in pieces ends in the bytes of the run in one piece."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys_moe.artifact.monitor import BY_LOSS
from recsys_moe.artifact.run_folder import record_run
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.errors import ConfigError, DataError, Interrupted
from recsys_moe.train.checkpoints import Checkpoints
from recsys_moe.train.fit import fit
from recsys_moe.train.module import RecModule
from recsys_moe.train.trainer import make_trainer
from tests.conftest import TINY_MODEL, tells

RESULTS = (
    "model/weights.safetensors",
    "metrics.csv",
    "evaluation/val.json",
    "routing.safetensors",
)


def config(**sections: Any) -> Config:
    trainer = {"max_epochs": 3, "batch_size": 64, **sections.pop("trainer", {})}
    data = {"eval_batch_size": 128, **sections.pop("data", {})}  # several batches of validation
    return parse_config({"model": TINY_MODEL, "trainer": trainer, "data": data, **sections})


def results(run: Path) -> list[bytes]:
    return [(run / name).read_bytes() for name in RESULTS]


Stop = tuple[str, int]
"""Hook of the callback after which a signal comes, and at which of its calls from the start."""


def fit_in_pieces(
    monkeypatch: pytest.MonkeyPatch, settings: Config, data: Path, out: Path, stops: list[Stop]
) -> list[str]:
    """Fit, with a SIGTERM at each stop and a resume after it. The messages of the stops."""
    messages = []
    for hook, call in stops:
        with monkeypatch.context() as patched:
            patched.setattr(Checkpoints, hook, after_signal(getattr(Checkpoints, hook), call))
            with pytest.raises(Interrupted) as stopped:
                fit(settings, data, out, resume="auto")
            assert stopped.value.exit_code == 128 + signal.SIGTERM
            messages.append(str(stopped.value))
    fit(settings, data, out, resume="auto")
    return messages


def after_signal(hook: Callable[..., Any], call: int) -> Callable[..., Any]:
    calls = iter(range(1, 10**9))

    def sends(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return hook(*args, **kwargs)

    return sends


@pytest.fixture(scope="module")
def straight(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    out = tmp_path_factory.mktemp("straight") / "run"
    fit(config(), prepared, out)
    return results(out)


STEP, VALIDATION, EPOCH = "on_train_batch_end", "on_validation_batch_end", "on_train_epoch_end"


@pytest.mark.parametrize(
    "stops",
    [
        [(STEP, 1)],
        [(STEP, 40), (STEP, 1), (STEP, 1)],
        [(VALIDATION, 2), (VALIDATION, 1), (STEP, 3)],
        [(EPOCH, 1), (STEP, 5), (EPOCH, 1), (EPOCH, 1)],
    ],
    ids=str,
)
def test_a_run_in_pieces_ends_in_the_same_bytes(
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    straight: list[bytes],
    stops: list[Stop],
) -> None:
    fit_in_pieces(monkeypatch, config(), prepared, tmp_path / "run", stops)
    assert results(tmp_path / "run") == straight


RECIPE: dict[str, Any] = {
    "model": {
        **TINY_MODEL,
        **{"item_bag": "ratings", "user_bag": "ratings", "bag_dim": 0},
        **{"bag_ratings": "linear", "bilinear_rank": 4, "bilinear_diagonal": True},
    },
    "data": {"resample_negatives": True, "popularity_exponent": 0.75, "user_exponent": 0},
    "optim": {"schedule": "cosine", "router_lr_multiplier": 10.0, "ema_decay": 0.99},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "EMA": {"optim": {"ema_decay": 0.99}},
    "cosine": {"optim": {"schedule": "cosine"}},
    "noise": {"model": {**TINY_MODEL, "router": {"name": "topk", "noise": True}}},
    "permutation": {"model": {**TINY_MODEL, "router": {"name": "comet"}}},
    "means": {"model": {**TINY_MODEL, "router": {"name": "default_moe"}}},
    "loads": {"model": {**TINY_MODEL, "router": {"name": "loss_free"}}},
    "counts": {"model": {**TINY_MODEL, "router": {"name": "relu", "l1_start": 0.01}}},
    "controller": {"model": {**TINY_MODEL, "router": {"name": "top_p"}}},
    "thresholds": {"model": {**TINY_MODEL, "router": {"name": "expert_threshold", "warmup": 3}}},
    "coupling": {"penalties": {"coupling": 0.1}},
    "running means": {"model": {**TINY_MODEL, "router": {"name": "kmeans"}}},
    "shipped recipe": RECIPE,
    "from disk": {"data": {"eval_batch_size": 128, "shuffle_buffer": 300}},
    "shipped recipe from disk": {**RECIPE, "data": {**RECIPE["data"], "shuffle_buffer": 300}},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_state_beyond_the_weights_is_saved_too(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    settings = config(trainer={"max_epochs": 2}, **VARIANTS[variant])
    fit(settings, prepared, tmp_path / "straight")
    stops = [(STEP, 37), (VALIDATION, 1)]
    fit_in_pieces(monkeypatch, settings, prepared, tmp_path / "run", stops)
    assert results(tmp_path / "run") == results(tmp_path / "straight")


def test_a_part_from_outside_may_draw_from_torch_s_own_generator(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = RecModule._parts

    def noisy(self: RecModule, *args: Any) -> Any:
        loss, penalties = losses(self, *args)
        return loss * (1 + torch.rand(())), penalties

    monkeypatch.setattr(RecModule, "_parts", noisy)
    settings = config(trainer={"max_epochs": 1})
    fit(settings, prepared, tmp_path / "straight")
    stops = [(STEP, 9), (STEP, 9)]
    first, _ = fit_in_pieces(monkeypatch, settings, prepared, tmp_path / "run", stops)
    where = f"epoch 1, step 9 is saved in {tmp_path / 'run' / 'checkpoints'}"
    assert first == f"interrupted; {where}: continue with --resume auto"
    assert results(tmp_path / "run") == results(tmp_path / "straight")


@pytest.fixture()
def stopped(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of three epochs that stopped inside its second one."""
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, STEP, after_signal(getattr(Checkpoints, STEP), 40))
        with pytest.raises(Interrupted):
            fit(config(), prepared, tmp_path / "run")
    return tmp_path / "run"


def test_more_epochs_and_more_patience_continue_as_if_they_had_been_asked_for(
    prepared: Path, tmp_path: Path
) -> None:
    impatient = {"patience": 1, "min_delta": 1e6}  # no epoch is better by 1e6: stops after two
    patient = {**impatient, "patience": 3, "max_epochs": 9}
    for name, trainer in (("straight", patient), ("run", {**impatient, "max_epochs": 5})):
        fit(config(trainer=trainer), prepared, tmp_path / name)
    rows = (tmp_path / "run" / "metrics.csv").read_bytes()
    fit(config(trainer={**impatient, "max_epochs": 9}), prepared, tmp_path / "run", resume="auto")
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == rows
    fit(config(trainer=patient), prepared, tmp_path / "run", resume="auto")
    assert results(tmp_path / "run") == results(tmp_path / "straight")


def test_a_moved_run_keeps_its_best_and_its_rows(
    prepared: Path, tmp_path: Path, straight: list[bytes], stopped: Path
) -> None:
    shutil.move(stopped, tmp_path / "moved")
    fit(config(), prepared, tmp_path / "moved", resume="auto")
    assert results(tmp_path / "moved") == straight


def test_a_checkpoint_of_another_folder_continues_in_a_new_one(
    prepared: Path, tmp_path: Path, straight: list[bytes], stopped: Path
) -> None:
    last = stopped / "checkpoints" / "last.ckpt"
    fit(config(), prepared, tmp_path / "new", resume=str(last))
    assert results(tmp_path / "new") == straight
    shutil.copytree(prepared, tmp_path / "data")
    with (tmp_path / "data" / "users.parquet").open("ab") as stream:
        stream.write(b" ")
    alone = shutil.copy(last, tmp_path / "alone.ckpt")
    for checkpoint in (last, alone):  # a checkpoint knows its data without its run folder
        with pytest.raises(DataError, match="users.parquet has changed since the run began"):
            fit(config(), tmp_path / "data", tmp_path / "newer", resume=str(checkpoint))


def test_a_damaged_last_checkpoint_costs_steps_and_not_the_result(
    prepared: Path, straight: list[bytes], stopped: Path, caplog: pytest.LogCaptureFixture
) -> None:
    last = stopped / "checkpoints" / "last.ckpt"
    os.truncate(last, last.stat().st_size - 100)
    with caplog.at_level(logging.INFO, logger="recsys_moe.fit"):
        fit(config(), prepared, stopped, resume="auto")
    assert tells(caplog.text, f"{last} ... cut off")
    assert "previous.ckpt after 1 of 3 epochs" in caplog.text
    assert results(stopped) == straight


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"optim": {"lr": 0.1}}, "optim.lr .*got 0.1"),
        ({"model": {**TINY_MODEL, "num_experts": 8}}, "model.num_experts must be 4, .*got 8"),
        ({"trainer": {"batch_size": 32}}, "trainer.batch_size .*got 32"),
    ],
)
def test_what_may_not_change_is_named(
    prepared: Path, stopped: Path, sections: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(config(**sections), prepared, stopped, resume="auto")


def test_a_cosine_schedule_ends_where_it_was_meant_to(prepared: Path, tmp_path: Path) -> None:
    cosine = {"optim": {"schedule": "cosine"}}
    fit(config(trainer={"max_epochs": 1}, **cosine), prepared, tmp_path / "run")
    with pytest.raises(ConfigError, match="max_epochs must be 1.*=cosine, got 3"):
        fit(config(**cosine), prepared, tmp_path / "run", resume="auto")


def test_auto_starts_where_there_is_nothing_yet_but_not_in_a_folder_of_others(
    prepared: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="--out .* exists"):
        fit(config(), prepared, tmp_path, resume="auto")
    settings = config(trainer={"max_epochs": 1})
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    record_run(tmp_path / "run", settings, prepared)  # killed before its first checkpoint
    fit(settings, prepared, tmp_path / "run", resume="auto")
    assert (tmp_path / "run" / "model").is_dir()
    shutil.rmtree(tmp_path / "run" / "checkpoints")  # to save space: the model must stay
    with pytest.raises(ConfigError, match="exists.*--ov"):
        fit(settings, prepared, tmp_path / "run", resume="auto")
    assert (tmp_path / "run" / "model").is_dir()


def test_a_requeued_job_ignores_checkpoints_of_the_current_folder(tmp_path: Path) -> None:
    """Under SLURM Lightning continues from any hpc_ckpt_1.ckpt in its root folder."""
    trainer = make_trainer(config(), tmp_path / "run", BY_LOSS)
    assert trainer.default_root_dir == str(tmp_path / "run")


def test_a_checkpoint_that_overwrite_would_delete_is_not_continued(
    stopped: Path, prepared: Path
) -> None:
    (stopped / "backup").mkdir()
    saved = stopped / "backup" / "last.ckpt"
    saved.write_bytes((stopped / "checkpoints" / "last.ckpt").read_bytes())
    with pytest.raises(ConfigError, match="is or holds --resume .*last.ckpt"):
        fit(config(), prepared, stopped, overwrite=True, resume=str(saved))
    assert saved.is_file()


def test_rows_that_processes_read_from_disk_are_not_shared_out_anew_inside_an_epoch(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamed = config(data={"shuffle_buffer": 100})
    monkeypatch.setattr(Checkpoints, STEP, after_signal(getattr(Checkpoints, STEP), 7))
    with pytest.raises(Interrupted):
        fit(streamed, prepared, tmp_path / "run")
    monkeypatch.undo()
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    state = torch.load(last, weights_only=True)
    assert state["streamed_by"] == 1
    torch.save({**state, "streamed_by": 2}, last)
    with pytest.raises(ConfigError, match="2 processes read from disk"):
        fit(streamed, prepared, tmp_path / "run", resume=str(last))
