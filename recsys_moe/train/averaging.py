"""A running mean of the weights: less noisy than the last ones, at next to no cost."""

from __future__ import annotations

from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

STRIDE = 32
"""Steps from one update of the mean to the next, or an epoch's if those are fewer: each reads all
weights."""
AVERAGE = "average"
"""Key of a checkpoint: the mean, by the names of `state_dict`."""


class WeightAverage(Callback):
    """Validates and keeps a mean of the parameters over about 1 / (1 - decay) steps.

    At first over a tenth of the steps so far, so that it does not lag behind where training began.

    Training goes on with the weights themselves, which a checkpoint has beside the mean. Used and
    not Lightning's EMAWeightAveraging, which copies the whole module and cannot be saved inside a
    validation.
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
        stride = int(min(STRIDE, trainer.num_training_batches))
        if trainer.global_step % stride == 0:
            values = [value for _, value in _named_parameters(pl_module)]
            decay = min(self.decay, 1 - 10 / max(trainer.global_step, 10))
            torch._foreach_lerp_(list(self.mean.values()), values, 1 - decay**stride)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._exchange(pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._exchange(pl_module)

    def _exchange(self, module: LightningModule) -> None:
        for name, value in _named_parameters(module):
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
        self.mean = dict(checkpoint.get(AVERAGE, {}))  # runs of before may have none


def averaged(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """The state of the module that was validated: with the mean where one was kept."""
    return {**checkpoint["state_dict"], **checkpoint.get(AVERAGE, {})}


def _named_parameters(module: LightningModule) -> list[tuple[str, Tensor]]:
    return [(name, parameter.detach()) for name, parameter in module.named_parameters()]
