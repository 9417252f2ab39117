"""The rows of slow_start.py: a callback that watches some steps of `fit` and probes each epoch."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from lightning import Trainer
from lightning.pytorch.callbacks import Callback

from recsys_moe.artifact.routing_history import spread_rows, take_rows
from recsys_moe.data.rows import Columns
from recsys_moe.train.module import RecModule
from research.slow_causes import gates
from research.slow_probes import (
    GateGradient,
    Row,
    expert_distance,
    expert_signal,
    gate_signal,
    gate_state,
)

PARTS = ("gate", "expert")
FIGURES = ("loss", "auc", "mse", "evaluated_share")
"""Of what the module logs."""


class Watcher(Callback):
    """Collects a row per epoch: of some of its steps while they go, and at its end."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rows: list[Row] = []
        self.steps: list[Row] = []

    def on_train_start(self, trainer: Trainer, module: RecModule) -> None:
        self.chunk = module.config.trainer.batch_size
        self.val = sample(trainer, "val", self.options.rows)
        self.train = sample(trainer, "train", self.options.chunks * self.chunk)
        self.tasks = [task.name for task in module.schema.tasks]
        self.parts = {
            "gate": gates(module.model),
            "expert": [*module.model.moe.experts.parameters()],
        }
        self._probe(module, {"epoch": 0})

    def on_train_epoch_start(self, trainer: Trainer, module: RecModule) -> None:
        self.start, self.steps = time.perf_counter(), []
        self.before_epoch = {part: flat(self.parts[part]) for part in PARTS}

    def on_before_optimizer_step(self, trainer: Trainer, module: RecModule, _: Any) -> None:
        if trainer.global_step % self.options.every:
            return
        self.before, row = {part: flat(self.parts[part]) for part in PARTS}, {}
        for part, values in self.before.items():
            row[f"{part}_norm"] = values.norm().item()
            row[f"{part}_grad"] = flat([p.grad for p in self.parts[part]]).norm().item()
        self.steps.append(row)

    def on_train_batch_end(self, trainer: Trainer, *unused: Any) -> None:
        if (trainer.global_step - 1) % self.options.every:
            return
        for part, values in self.before.items():
            moved = flat(self.parts[part]) - values
            self.steps[-1][f"{part}_moved"] = moved.norm().item()

    def on_train_epoch_end(self, trainer: Trainer, module: RecModule) -> None:
        seconds = time.perf_counter() - self.start
        row = {"epoch": trainer.current_epoch + 1, "seconds": seconds}
        logged = {name: float(value) for name, value in trainer.logged_metrics.items()}
        row |= {n: v for n, v in sorted(logged.items()) if n.split("/")[-1] in FIGURES}
        row |= self._step_means(trainer)
        for task, routing in zip(self.tasks, module._evaluation.routing, strict=True):
            load = routing.compute()["load"]
            row[f"serving_experts.{task}"] = sum(share > 0.01 for share in load)
            row[f"load.{task}"] = " ".join(f"{share:.3f}" for share in load)
        self._probe(module, row)

    def _probe(self, module: RecModule, row: Row) -> None:
        model = module.model
        row |= gate_state(model, self.val, self.tasks)
        row |= expert_distance(model, self.val, self.tasks)
        gradient = GateGradient(module, self.train, self.chunk)
        row |= gate_signal(gradient, self.options.draws, self.tasks)
        row |= expert_signal(module, self.train, self.chunk)
        model.train()
        self.rows.append(row)

    def _step_means(self, trainer: Trainer) -> Row:
        """Means over the watched steps; `_straight`: way from where to where, of the way gone."""
        row: Row = {}
        for part in PARTS:
            mean = {
                name: sum(step[f"{part}_{name}"] for step in self.steps) / len(self.steps)
                for name in ("norm", "grad", "moved")
            }
            gone = mean["moved"] * trainer.num_training_batches
            net = (flat(self.parts[part]) - self.before_epoch[part]).norm().item()
            row |= {
                f"{part}_norm": mean["norm"],
                f"{part}_grad": mean["grad"],
                f"{part}_grad_share": mean["grad"] / mean["norm"],
                f"{part}_update_share": mean["moved"] / mean["norm"],
                f"{part}_straight": net / gone if gone else math.nan,
            }
        return row | {"gate_adam_scale": adam_scale(trainer, self.parts["gate"])}


def flat(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in values])


def adam_scale(trainer: Trainer, values: Sequence[torch.Tensor]) -> float:
    """Median of the root of Adam's second moment, which its eps is added to."""
    optimizer = trainer.optimizers[0]
    rest = 1 - optimizer.param_groups[0]["betas"][1] ** trainer.global_step
    squares = flat([optimizer.state[value]["exp_avg_sq"] for value in values])
    return (squares / rest).sqrt().median().item()


def sample(trainer: Trainer, split: str, most: int) -> Columns:
    """Rows from all over a split in a fixed random order."""
    rows = trainer.datamodule.rows(split)  # type: ignore[attr-defined]
    found = take_rows(rows, spread_rows(len(rows), most, 1))
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0))
    return Columns(*found.take(order))
