"""Exponential moving average (EMA) of the weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from recsys_moe.train.workarounds import makes_step, steps_per_epoch

STRIDE = 32
"""Steps between two updates of the mean, at most those of an epoch: each reads all weights."""
AVERAGE = "average"
"""Key of a checkpoint: the mean, by the names of `state_dict`."""


class WeightAverage(Callback):
    """Validates and saves a mean of the parameters over about 1 / (1 - decay) steps.

    The first updates average over a tenth of the steps so far, so that the mean does not lag.
    Training continues with the weights themselves; a checkpoint holds both. Lightning's
    EMAWeightAveraging copies the whole module and cannot be saved inside a validation.
    """

    def __init__(self, decay: float) -> None:
        """`decay`: per step, in (0, 1)."""
        self.decay = decay
        self.mean: dict[str, Tensor] = {}
        self._is_in_use = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, value in _named_parameters(pl_module):
            self.mean[name] = self.mean.get(name, value).to(value.device, copy=True)

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *rest: Any) -> None:
        stride = min(STRIDE, steps_per_epoch(trainer))
        if trainer.global_step % stride == 0 and makes_step(trainer):
            values = [value for _, value in _named_parameters(pl_module)]
            decay = min(self.decay, 1 - 10 / max(trainer.global_step, 10))
            torch._foreach_lerp_(list(self.mean.values()), values, 1 - decay**stride)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._exchange(pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._exchange(pl_module)

    @contextmanager
    def in_use(self, module: LightningModule) -> Iterator[None]:
        """With the weights that are validated."""
        if not self.decay:
            yield
            return
        self._exchange(module)
        try:
            yield
        finally:
            self._exchange(module)

    def _exchange(self, module: LightningModule) -> None:
        for name, value in _named_parameters(module) if self.mean else ():
            weights = value.clone()
            value.copy_(self.mean[name])
            self.mean[name].copy_(weights)
        self._is_in_use = not self._is_in_use

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        mean, weights = self.mean, checkpoint["state_dict"]
        if self._is_in_use:
            mean = {name: weights[name] for name in mean}
            checkpoint["state_dict"] = {**weights, **self.mean}
        checkpoint[AVERAGE] = mean

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.mean = dict(checkpoint.get(AVERAGE, {}))


def averaged(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The state of the module as it was validated: the mean of the weights where there is one."""
    return {**checkpoint["state_dict"], **checkpoint.get(AVERAGE, {})}


def of_model(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those of a module that are its model's, by their names in it."""
    prefix = "model."
    named = ((name, values) for name, values in weights.items() if name.startswith(prefix))
    return {name.removeprefix(prefix): values for name, values in named}


def _named_parameters(module: LightningModule) -> list[tuple[str, Tensor]]:
    return [(name, parameter.detach()) for name, parameter in module.named_parameters()]
