"""Lightning passes over what is empty and still calls what is defined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import Callback, LambdaCallback
from torch import Tensor
from torch.utils.data import DataLoader

from recsys_moe.config.settings import parse_config
from recsys_moe.train.checkpoints import Checkpoints
from recsys_moe.train.fit import fit
from recsys_moe.train.lean_loop import STEP_HOOKS, NoProfiler, skip_idle_hooks


class Module(lightning.LightningModule):
    """One parameter, which each step lowers by the learning rate."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.weight.sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Ends(Callback):
    """Counts the ends of batches and defines nothing else."""

    seen = 0

    def on_train_batch_end(self, *unused: Any) -> None:
        self.seen += 1


def test_a_step_is_the_same_without_its_idle_hooks(tmp_path: Path) -> None:
    """Three steps of 0.5 against a gradient of 1: -1.5."""
    module, ends = Module(), Ends()
    for part in (module, ends):
        skip_idle_hooks(part)
    trainer = lightning.Trainer(
        max_epochs=1, callbacks=[ends], profiler=NoProfiler(), accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, DataLoader(torch.zeros(3, 1), batch_size=1))
    assert (module.weight.item(), ends.seen, trainer.global_step) == (-1.5, 3, 3)


def test_only_hooks_that_are_not_defined_are_skipped() -> None:
    ends = Ends()
    skip_idle_hooks(ends)
    called = [name for name in STEP_HOOKS if callable(getattr(ends, name))]
    assert called == ["on_train_batch_end"]


def test_a_hook_that_the_callback_carries_itself_stays() -> None:
    steps = []
    watcher = LambdaCallback(on_train_batch_start=lambda *unused: steps.append(1))
    skip_idle_hooks(watcher)
    watcher.on_train_batch_start(None, None, None, 0)  # type: ignore[arg-type]
    assert steps == [1]


def test_fit_runs_the_lean_loop(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a training Lightning meets no profiler and no hook to call in vain."""
    profilers: list[object] = []
    idle: list[str] = []

    def look(self: Callback, trainer: Any, module: lightning.LightningModule) -> None:
        profilers.append(trainer.profiler)
        for part, base in ((module, lightning.LightningModule), (self, Callback)):
            kept = [name for name in STEP_HOOKS if callable(getattr(part, name))]
            idle.extend(name for name in kept if getattr(type(part), name) is getattr(base, name))

    monkeypatch.setattr(Checkpoints, "on_train_epoch_start", look)
    model = {"embedding_dim": 8, "num_experts": 4, "expert_dim": 16, "tower_dims": [8]}
    config = parse_config({"model": model, "trainer": {"max_epochs": 1, "batch_size": 64}})
    fit(config, prepared, tmp_path / "run")
    assert [type(profiler) for profiler in profilers] == [NoProfiler] and idle == []
