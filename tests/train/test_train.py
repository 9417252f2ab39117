"""Training: it learns, repeats itself bit by bit, masks labels, keeps the best, stops on NaN."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from recsys_moe import machine
from recsys_moe.artifact.monitor import BY_LOSS
from recsys_moe.config.settings import Config, ConfigError, parse_config
from recsys_moe.data.columns import load_columns
from recsys_moe.data.rows import Batch
from recsys_moe.data.streaming import positive_items
from recsys_moe.errors import DataError
from recsys_moe.model.moe import MoE
from recsys_moe.routers.base_layer import BaseLayerRouter
from recsys_moe.schema import Schema
from recsys_moe.train.fit import fit
from recsys_moe.train.module import RecModule
from recsys_moe.train.opening import say_memory
from recsys_moe.train.trainer import make_trainer
from tests.conftest import TINY_MODEL


def config(**sections: Any) -> Config:
    trainer = {"max_epochs": 2, "batch_size": 64, **sections.pop("trainer", {})}
    return parse_config({"model": TINY_MODEL, "trainer": trainer, **sections})


def module(prepared: Path, **sections: Any) -> RecModule:
    schema = Schema.load(prepared).to_json()
    return RecModule(config(**sections).model_dump(mode="json"), schema)


def first_rows(prepared: Path, rows: int) -> Batch:
    return load_columns(prepared, Schema.load(prepared), "train").take(slice(0, rows))


def gradients(trained: RecModule, batch: Batch, task: int) -> dict[str, Tensor]:
    """Gradients of the tower and router of one task; dropout and sampling as in step 0."""
    trained.zero_grad()
    trained.model.reseed(0)
    loss, _ = trained.losses(trained.model.train()(batch.request), batch.labels)
    loss.backward()
    parts = trained.model.towers[task], trained.model.routers[task]
    return {
        f"{i}.{n}": p.grad.clone()
        for i, part in enumerate(parts)
        for n, p in part.named_parameters()
    }


@pytest.mark.slow
def test_sixty_four_rows_are_memorised(prepared: Path) -> None:
    batch = first_rows(prepared, 64)
    router = {"name": "moesart", "k": 2}
    learner = module(
        prepared, model={**TINY_MODEL, "dropout": 0.0, "router": router}, optim={"lr": 0.01}
    )
    optimizer = learner.configure_optimizers()
    for step in range(400):
        learner.model.train().reseed(step)
        loss, _ = learner.losses(learner.model(batch.request), batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    learner.model.eval()
    loss, _ = learner.losses(learner.model(batch.request), batch.labels)
    assert loss.item() < 0.1  # starts at about 0.9 + 0.1, the constants' losses


def test_a_task_without_labels_changes_nothing_in_the_other(prepared: Path) -> None:
    batch = first_rows(prepared, 64)
    labels = batch.labels.clone()
    labels[:, 1] = torch.nan
    learner = module(prepared)
    with_ratings = gradients(learner, batch, task=0)
    without = gradients(learner, batch._replace(labels=labels), task=0)
    assert all(torch.equal(with_ratings[name], without[name]) for name in without)
    assert all(
        (g == 0).all() for g in gradients(learner, batch._replace(labels=labels), 1).values()
    )


UNITS = [(False, "auto", False), (True, "auto", True), (True, "absolute", False)]


@pytest.mark.parametrize(("biases", "scale", "relative"), [*UNITS, (False, "relative", True)])
def test_the_loss_is_the_weighted_sum_of_the_tasks(
    prepared: Path, biases: bool, scale: str, relative: bool
) -> None:
    """Each task's loss is divided by that of the best constant first, if asked or by default."""
    batch, model = first_rows(prepared, 64), {**TINY_MODEL, "biases": biases}
    losses = []
    for watch, rating in ((1.0, 0.0), (0.0, 1.0), (0.9, 0.1)):
        weights = {"watch": {"weight": watch}, "rating": {"weight": rating}}
        learner = module(prepared, model=model, tasks=weights, optim={"losses": scale})
        output = learner.model.eval()(batch.request)
        losses.append(learner.losses(output, batch.labels)[0].item())
    logits, (watched, stars) = output.logits_BT, batch.labels.unbind(1)
    own = F.binary_cross_entropy_with_logits(logits[:, 0], watched), mse(logits[:, 1], stars)
    # Half of the rows are positive: a constant has a loss of ln 2; of ratings it is the variance.
    deviation = Schema.load(prepared).labels["train"]["rating"]["std"]
    units = (math.log(2), deviation**2) if relative else (1, 1)
    expected = [one.item() / unit for one, unit in zip(own, units, strict=True)]
    assert losses[:2] == pytest.approx(expected, rel=1e-4)
    assert losses[2] == pytest.approx(0.9 * losses[0] + 0.1 * losses[1])


def mse(logits_B: Tensor, labels_B: Tensor) -> Tensor:
    """Over the labelled rows."""
    known_B = ~labels_B.isnan()
    return (logits_B - labels_B)[known_B].square().mean()


def test_initial_weights_follow_keras_defaults(prepared: Path) -> None:
    """U(-.05, .05) embeddings; Glorot bound sqrt(6 / (fan_in + fan_out)); zero biases."""
    model = module(prepared).model
    assert 0.045 < model.user_embedding.weight.abs().max() <= 0.05
    gate = model.routers[0].gate.weight  # type: ignore[union-attr]
    assert gate.abs().max() <= (6 / (16 + 4)) ** 0.5
    kernel = model.moe.experts.kernel_EDH
    assert 0.9 * (6 / 32) ** 0.5 < kernel.abs().max() <= (6 / 32) ** 0.5
    biases = [p for name, p in model.named_parameters() if "bias" in name]
    assert len(biases) == 1 + 2 + 4 and all((bias == 0).all() for bias in biases)


def digest(run: Path) -> str:
    weights = (run / "model" / "weights.safetensors").read_bytes()
    return hashlib.sha256(weights + metrics_text(run).encode()).hexdigest()


def metrics_text(run: Path) -> str:
    return (run / "metrics.csv").read_text()


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(
    prepared: Path, run: Path, tmp_path: Path
) -> None:
    fit(config(), prepared, tmp_path / "again")
    fit(config(trainer={"seed": 1}), prepared, tmp_path / "other")
    assert digest(run) == digest(tmp_path / "again") != digest(tmp_path / "other")


def test_the_run_folder_holds_what_is_promised(run: Path, prepared: Path) -> None:
    for name in ("config.yaml", "command.txt", "env.json", "data.lock.json", "metrics.csv"):
        assert (run / name).stat().st_size > 0, name
    assert (run / "checkpoints" / "best.ckpt").is_file()
    assert (run / "checkpoints" / "last.ckpt").is_file()
    assert list((run / "events").glob("events.out.tfevents.*"))
    lock = json.loads((run / "data.lock.json").read_text())
    assert lock["folder"] == str(prepared) and "train/part-00000.parquet" in lock["files"]
    result = json.loads((run / "evaluation" / "val.json").read_text())
    assert result["split"] == "val" and 0 < result["tasks"]["watch"]["auc"] <= 1


def test_metrics_csv_has_one_complete_row_per_epoch(run: Path) -> None:
    rows = list(csv.DictReader(metrics_text(run).splitlines()))
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert all(value for row in rows for value in row.values())
    assert {"train/loss", "val/loss", "val/watch/auc", "val/rating/mse"} <= set(rows[0])


def test_the_artifact_is_the_best_epoch_by_validation_loss(run: Path) -> None:
    rows = list(csv.DictReader(metrics_text(run).splitlines()))
    best = min(rows, key=lambda row: float(row["val/loss"]))
    card = json.loads((run / "model" / "card.json").read_text())
    assert card["val"]["epoch"] == int(best["epoch"])
    assert card["val"]["loss"] == pytest.approx(float(best["val/loss"]), abs=1e-6)


def test_dropout_and_sampling_are_on_in_every_epoch_and_off_in_validation(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning restores the training mode after validation without calling `train()`."""
    seen: list[tuple[bool, bool, bool]] = []
    forward = MoE.forward

    def spy(layer: MoE, x_BD: Tensor, user_B: Tensor) -> Any:
        dropout = layer.experts.dropout
        masked = dropout.mask((1, 64), x_BD) is not None
        seen.append((torch.is_grad_enabled(), masked, dropout.scale != 1))
        return forward(layer, x_BD, user_B)

    monkeypatch.setattr(MoE, "forward", spy)
    fit(config(trainer={"max_epochs": 3}), prepared, tmp_path / "run")
    assert {(masked, scaled) for training, masked, scaled in seen if training} == {(True, True)}
    assert {(masked, scaled) for training, masked, scaled in seen if not training} == {
        (False, False)
    }


def test_fit_leaves_the_float_state_of_the_process_as_it_was(run: Path) -> None:
    """Denormals are flushed during training only: 1e-40 is a float32 denormal."""
    assert torch.tensor([1e-40]).mul(1.0).item() != 0


def test_resume_refuses_other_data_other_files_and_foreign_folders(
    prepared: Path, run: Path, tmp_path: Path
) -> None:
    from data_prep.synthetic import prepare

    prepare(tmp_path / "other", users=60, items=40, interactions=1000, seed=1)
    with pytest.raises(DataError, match=f"{tmp_path / 'other'} .*not the data"):
        fit(config(), tmp_path / "other", run, resume="auto")
    with pytest.raises(ConfigError, match="cannot be read as a checkpoint"):
        fit(config(), prepared, tmp_path / "new", resume=str(run / "metrics.csv"))
    with pytest.raises(ConfigError, match="exists"):
        fit(config(), prepared, tmp_path / "other", resume=str(run / "checkpoints" / "last.ckpt"))
    assert not (tmp_path / "new").exists()


def test_positives_are_the_positive_training_items_of_each_user(prepared: Path) -> None:
    schema = Schema.load(prepared)
    columns = load_columns(prepared, schema, "train")
    seen = positive_items(columns, schema)
    start, stop = seen["offsets"][3:5].tolist()
    mine = (columns.user == 3) & (columns.labels[:, 0] == 1)
    assert seen["items"][start:stop].tolist() == sorted(columns.item[mine].tolist())
    rating_only = replace(schema, tasks=schema.tasks[1:])
    everything = positive_items(replace(columns, labels=columns.labels[:, 1:]), rating_only)
    assert len(everything["items"]) == len(columns)


@pytest.mark.parametrize(
    ("is_fast", "precision", "warned"),
    [(False, "bf16-mixed", True), (True, "bf16-mixed", False), (False, "32-true", False)],
)
def test_emulated_bfloat16_is_warned_of(
    is_fast: bool,
    precision: str,
    warned: bool,
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("recsys_moe.train.trainer.has_fast_bf16", lambda: is_fast)
    trainer = {"max_epochs": 1, "precision": precision, "accelerator": "cpu"}
    fit(config(trainer=trainer), prepared, tmp_path / "run")
    assert (
        "emulates bfloat16 on this processor; steps may take 10 times as long" in caplog.text
    ) == warned


def test_what_fails_after_a_checkpoint_keeps_it(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(module: RecModule) -> None:
        if module.trainer.current_epoch == 1:
            raise ConfigError("as of a router from outside")

    monkeypatch.setattr(RecModule, "on_train_epoch_start", refuse, raising=False)
    with pytest.raises(ConfigError, match="from outside"):
        fit(config(), prepared, tmp_path / "run")
    assert (tmp_path / "run/checkpoints/last.ckpt").exists()


def test_auto_and_gpu_never_mean_a_macs_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no float64."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    trainer = make_trainer(config(), Path("unused"), BY_LOSS)
    assert trainer.strategy.root_device.type == "cpu"
    with pytest.raises(ConfigError, match="trainer.accelerator=gpu"):
        make_trainer(config(trainer={"accelerator": "gpu"}), Path("unused"), BY_LOSS)


def test_a_setting_that_fails_at_the_first_step_leaves_no_run_folder(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a custom router, which is found out at the first step."""
    monkeypatch.setattr(BaseLayerRouter.Config, "idle_penalties", {})
    settings = {**TINY_MODEL, "router": "base"}
    with pytest.raises(ConfigError, match="penalties.switch must be 0 with a router without probs"):
        fit(config(model=settings, penalties={"switch": 0.1}), prepared, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_tables_larger_than_the_free_memory_are_said_before_the_first_step(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    averaged = module(prepared, optim={"ema_decay": 0.9})
    needed = 4 * 5 * sum(one.numel() for one in averaged.parameters())  # two moments, and a mean
    for free, lines in ((needed, 0), (needed - 1, 1)):
        monkeypatch.setattr(machine, "memory", lambda free=free: {"available": free})
        monkeypatch.setattr(machine, "memory_limit", lambda: None)
        caplog.clear()
        say_memory(averaged, averaged.config)
        assert caplog.text.count("lower model.embedding_dim") == lines
