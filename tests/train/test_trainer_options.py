"""Options of a plain Trainer, each beside a reference: what it should be equal to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    Callback,
    GradientAccumulationScheduler,
    LearningRateMonitor,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor

from recsys_moe import RecDataModule, RecModule, fit, save_model
from recsys_moe.data.rows import Batch
from recsys_moe.errors import ConfigError
from tests.conftest import TINY_MODEL
from tests.train.test_plain_trainer import BASE, SAMPLED, History, metrics_of, trainer_for

NO_DRAWS = {"id_dropout": 0, "features_only_rate": 0}
WATCH = {"watch": {"weight": 1}, "rating": {"weight": 0}}
"""Every row has a label of it."""


def settings(router: str, rows: int, **more: Any) -> dict[str, Any]:
    """Without random draws in a step."""
    model = {**TINY_MODEL, "dropout": 0.0, "router": {"name": router}}
    return {
        "model": model,
        "data": NO_DRAWS,
        "tasks": WATCH,
        "trainer": {"batch_size": rows},
    } | more


def run(
    data: Path, out: Path, sections: dict[str, Any], *more: Callback, **options: Any
) -> Trainer:
    trainer = trainer_for(out, *more, **{"enable_checkpointing": False, **options})
    trainer.fit(RecModule(sections), datamodule=RecDataModule(data))
    return trainer


def state(trainer: Trainer) -> dict[str, Tensor]:
    return dict(trainer.lightning_module.state_dict())


def assert_close(one: Trainer, other: Trainer, **tolerance: float) -> None:
    first, second = state(one), state(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], **(tolerance or {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize("router", ["topk", "loss_free", "default_moe", "comet"])
def test_two_half_batches_are_one_batch(prepared: Path, tmp_path: Path, router: str) -> None:
    """Where both halves have as many labels: their mean is that of the batch. Loads, means of
    outputs and schedules go by steps, too."""
    optim = {"eps": 1e-3, "ema_decay": 0.5, "schedule": "cosine"}
    one = run(prepared, tmp_path, settings(router, 64, optim=optim), limit_train_batches=20)
    halves = {"limit_train_batches": 40, "accumulate_grad_batches": 2}
    two = run(prepared, tmp_path, settings(router, 32, optim=optim), **halves)
    assert one.global_step == two.global_step == 60
    assert_close(one, two, rtol=1e-3, atol=2e-5)
    means = (t.lightning_module.average.mean for t in (one, two))
    for own, other in zip(*(mean.values() for mean in means), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=2e-5)


def test_batches_of_one_step_draw_differently_and_schedules_count_steps(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []
    epochs: list[float] = []

    class Watch(Callback):
        def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            model, reseed = pl_module.model, pl_module.model.reseed
            monkeypatch.setattr(model, "reseed", lambda seed: (seeds.append(seed), reseed(seed)))
            monkeypatch.setattr(model, "set_epoch", epochs.append)

    options = {"max_epochs": 2, "limit_train_batches": 3, "limit_val_batches": 0}
    run(prepared, tmp_path, BASE, Watch(), accumulate_grad_batches=2, **options)
    assert len(set(seeds)) == len(seeds) == 6
    assert epochs == [0, 0, 0.5, 1, 1, 1.5]  # two steps in each epoch of three batches


@pytest.mark.filterwarnings("ignore:.*overriding `LightningModule.optimizer_")
def test_accumulation_may_change_between_epochs(prepared: Path, tmp_path: Path) -> None:
    schedule = GradientAccumulationScheduler({0: 1, 1: 4})
    trainer = run(prepared, tmp_path, BASE, schedule, max_epochs=2, limit_train_batches=8)
    assert trainer.global_step == 8 + 2


def test_clipped_gradients_have_the_norm_that_was_asked_for(prepared: Path, tmp_path: Path) -> None:
    norms: list[float] = []

    class Watch(Callback):
        def on_train_batch_end(
            self, trainer: Trainer, pl_module: LightningModule, *rest: Any
        ) -> None:
            grads = [p.grad for p in pl_module.parameters() if p.grad is not None]
            norms.append(float(torch.nn.utils.get_total_norm(grads)))

    options: dict[str, Any] = {"max_epochs": 1, "limit_train_batches": 5}
    run(prepared, tmp_path, BASE, Watch(), **options)
    free, most = [*norms], min(norms) / 2
    norms.clear()
    run(prepared, tmp_path, BASE, Watch(), gradient_clip_val=most, **options)
    assert min(free) > most and norms == pytest.approx([most] * 5, rel=1e-4)


def test_half_precision_with_clipping_gets_an_optimizer_that_lightning_can_clip(
    prepared: Path,
) -> None:
    """As of `16-mixed` on a GPU: Lightning refuses to clip for a fused Adam with a scaler."""
    module = RecModule(BASE, RecDataModule(prepared).schema.to_json())
    for precision, clip, fused in [
        ("bf16-mixed", 1, False),
        ("16-mixed", 1.0, False),
        ("16-mixed", None, True),
        ("32", 1.0, True),
    ]:
        module._trainer = SimpleNamespace(precision=precision, gradient_clip_val=clip)  # type: ignore
        assert module.make_optimizer().defaults["fused"] == fused


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true"])
def test_another_precision_is_that_of_fit(prepared: Path, tmp_path: Path, precision: Any) -> None:
    steps = {"batch_size": 64, "max_epochs": 2, "precision": precision}
    fit(prepared, tmp_path / "run", {**BASE, "trainer": steps})
    history = History()
    run(prepared, tmp_path, BASE, history, max_epochs=2, precision=precision)
    for own, other in zip(history.rows, metrics_of(tmp_path / "run"), strict=True):
        assert own == pytest.approx(other, rel=1e-6, abs=1e-6)


def test_weights_of_half_precision_are_refused(prepared: Path, tmp_path: Path) -> None:
    """(1e-4)^2 = 1e-8 is 0 in float16: Adam's step, divided by its root, has no bound."""
    assert torch.tensor(1e-8).half() == 0
    with pytest.raises(ConfigError, match="precision must .*got 16-true; use bf16-true or 16-mix"):
        run(prepared, tmp_path, BASE, precision="16-true")


class LinearTypes(Callback):
    """The types that linear layers compute in."""

    def __init__(self) -> None:
        self.types: set[torch.dtype] = set()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for part in pl_module.modules():
            if isinstance(part, torch.nn.Linear):
                part.register_forward_hook(lambda _, __, out: self.types.add(out.dtype))


def half_precision(scale: float) -> MixedPrecision:
    """`16-mixed` on a CPU, for which Lightning itself takes bfloat16."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    return MixedPrecision("16-mixed", device="cpu", scaler=scaler)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_half_precision_learns_what_full_precision_does(
    prepared: Path, tmp_path: Path, clip: float | None
) -> None:
    options: dict[str, Any] = {"max_epochs": 3, "gradient_clip_val": clip}
    wanted, found, watch = History(), History(), LinearTypes()
    run(prepared, tmp_path, BASE, wanted, **options)
    half = [half_precision(2.0**16)]
    trainer = run(prepared, tmp_path, BASE, found, watch, plugins=half, **options)
    assert torch.float16 in watch.types  # routers stay in float32
    assert {value.dtype for value in trainer.lightning_module.parameters()} == {torch.float32}
    losses = [[row[f"{part}/loss"] for row in found.rows] for part in ("train", "val")]
    for part, own in zip(("train", "val"), losses, strict=True):
        assert own == pytest.approx([row[f"{part}/loss"] for row in wanted.rows], rel=2e-3)
    assert losses[0][-1] < losses[0][0]


def test_half_precision_leaves_out_steps_that_overflow(prepared: Path, tmp_path: Path) -> None:
    half = half_precision(2.0**40)
    trainer = run(prepared, tmp_path, BASE, max_epochs=2, plugins=[half])
    assert half.scaler is not None and 1 <= half.scaler.get_scale() < 2.0**40
    assert all(value.isfinite().all() for value in state(trainer).values())
    assert float(trainer.callback_metrics["train/loss"]) > 0


def test_a_fast_dev_run_touches_every_loop_and_leaves_nothing(
    featured: Path, tmp_path: Path
) -> None:
    trainer = trainer_for(tmp_path, fast_dev_run=True)
    module, data = RecModule(BASE), RecDataModule(featured)
    trainer.fit(module, datamodule=data)
    assert trainer.global_step == 1
    assert "val/loss" in trainer.validate(module, datamodule=data, verbose=False)[0]
    assert "test/loss" in trainer.test(module, datamodule=data, verbose=False)[0]
    assert [*trainer.predict(module, datamodule=data)[0]] == ["watch", "rating"]
    assert [*tmp_path.iterdir()] == []


STOPS = {
    "after an epoch": {"every_n_epochs": 1, "save_on_train_epoch_end": True},
    "after validation": {"every_n_epochs": 1, "save_on_train_epoch_end": False},
    "inside an epoch": {"every_n_train_steps": 7},
    "at the last step of an epoch": {"every_n_train_steps": 25},
}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("router", ["moesart", "loss_free"])
def test_a_trainer_continues_from_any_checkpoint_with_the_same_bits(
    prepared: Path, tmp_path: Path, stop: str, router: str
) -> None:
    sections = {
        "model": {**TINY_MODEL, "biases": True, "router": {"name": router}},
        "optim": {"ema_decay": 0.9}, "data": SAMPLED, "trainer": {"batch_size": 64},
    }  # fmt: skip
    saving = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **STOPS[stop])
    whole = run(prepared, tmp_path, sections, saving, enable_checkpointing=True)
    assert whole.num_training_batches == 25
    first = sorted(tmp_path.glob("*.ckpt"), key=lambda path: int(path.stem.split("=")[1]))[0]
    saving = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **STOPS[stop])
    resumed = trainer_for(tmp_path, saving)
    resumed.fit(RecModule(sections), datamodule=RecDataModule(prepared), ckpt_path=first)
    assert resumed.global_step == whole.global_step == 75
    assert_close(whole, resumed)
    logged = [{k: float(v) for k, v in t.callback_metrics.items()} for t in (whole, resumed)]
    assert logged[0] == logged[1]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"val_check_interval": 0.4}, 75),
        ({"check_val_every_n_epoch": 2}, 75),
        ({"limit_val_batches": 0}, 75),
        ({"max_epochs": -1, "max_steps": 30}, 30),
        ({"limit_train_batches": 0.2}, 15),
    ],
)
def test_other_loops_log_the_training_loss_and_end_a_cosine(
    prepared: Path, tmp_path: Path, options: dict[str, Any], steps: int
) -> None:
    """max_steps=30 are two epochs of 25 steps, of which the second is cut off."""
    sections = {**BASE, "optim": {"schedule": "cosine"}}
    trainer = run(prepared, tmp_path, sections, **options)
    assert trainer.global_step == steps
    assert 0.5 < trainer.callback_metrics["train/loss"] < 1.5
    schedule = trainer.lr_scheduler_configs[0].scheduler
    assert schedule.T_max == (2 if "max_steps" in options else 3)


def test_a_cosine_without_an_end_is_refused(prepared: Path, tmp_path: Path) -> None:
    sections = {**BASE, "optim": {"schedule": "cosine"}}
    with pytest.raises(ConfigError, match="cosine needs a Trainer with max_epochs or max_steps"):
        run(prepared, tmp_path, sections, max_epochs=-1, max_time="00:00:01:00")


def test_overfitting_repeats_its_batches(prepared: Path, tmp_path: Path) -> None:
    seen: list[Tensor] = []

    class Watch(Callback):
        def on_train_batch_start(
            self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int
        ) -> None:
            seen.append(batch.user)

    run(prepared, tmp_path, BASE, Watch(), overfit_batches=1)
    assert len(seen) == 3 and seen[0].equal(seen[1]) and seen[1].equal(seen[2])


def test_callbacks_of_lightning_run_beside_the_average(prepared: Path, tmp_path: Path) -> None:
    callbacks = [StochasticWeightAveraging(1e-3, swa_epoch_start=1), LearningRateMonitor()]
    logger = CSVLogger(tmp_path)
    trainer = run(
        prepared, tmp_path, {**BASE, "optim": {"ema_decay": 0.9}}, *callbacks, logger=logger
    )
    assert trainer.global_step == 75
    assert "lr-Adam" in Path(logger.log_dir, "metrics.csv").read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("router", ["topk", "moesart"])
def test_a_compiled_module_is_the_module(prepared: Path, tmp_path: Path, router: str) -> None:
    """Without dropout, whose draws for all experts are others than those for chosen pairs."""
    sections = settings(router, 64)
    plain = run(prepared, tmp_path, sections, max_epochs=1)
    compiled: Any = torch.compile(RecModule(sections), backend="eager")
    trainer = trainer_for(tmp_path, max_epochs=1, enable_checkpointing=False)
    trainer.fit(compiled, datamodule=RecDataModule(prepared))
    assert_close(plain, trainer, rtol=1e-4, atol=1e-6)
    results = [
        t.test(t.lightning_module, datamodule=RecDataModule(prepared), verbose=False)[0]
        for t in (plain, trainer)
    ]
    assert results[0] == pytest.approx(results[1], rel=1e-4)


def figures(data: Path, out: Path, devices: int, strategy: str) -> list[float]:
    """Loss on validation and on test of a model that is saved."""
    trainer = Trainer(
        max_epochs=2, accelerator="cpu", devices=devices, strategy=strategy, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(RecModule(settings("topk", 64)), datamodule=RecDataModule(data))
    loss = float(trainer.callback_metrics["val/loss"])
    module, data_module = trainer.lightning_module, trainer.datamodule  # type: ignore[attr-defined]
    (tested,) = trainer.test(module, datamodule=data_module, verbose=False)
    save_model(trainer, out)
    return [loss, tested["test/loss"]]


TWO = """
import os, sys
from pathlib import Path
from tests.train.test_trainer_options import figures

found = figures(Path(sys.argv[1]), Path(sys.argv[2]), 2, "ddp")
if os.environ.get("LOCAL_RANK", "0") == "0":
    print("figures", *found)
"""


@pytest.mark.slow
def test_two_processes_are_one(prepared: Path, tmp_path: Path) -> None:
    """A batch is what all processes take together."""
    (tmp_path / "two.py").write_text(TWO)
    own = {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "two.py", str(prepared), "2"],
        env={**os.environ, **own}, capture_output=True, text=True, timeout=280, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    line = next(one for one in done.stdout.splitlines() if one.startswith("figures"))
    two = [float(word) for word in line.split()[1:]]
    assert figures(prepared, tmp_path / "1", 1, "auto") == pytest.approx(two, rel=1e-3)
    assert all((tmp_path / name / "manifest.json").is_file() for name in "12")
