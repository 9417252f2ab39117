"""What the training step does for `tasks.weighting`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from lightning import LightningModule
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch import Tensor, nn

from recsys_moe.data.rows import Batch
from recsys_moe.errors import ConfigError
from recsys_moe.model.weighting import Weighting
from recsys_moe.train.processes.devices import all_sum


def check_training(module: LightningModule, weighting: Weighting) -> None:
    """Raise ConfigError where a step is going to sum the gradients of several batches, or a
    compiled module would be differentiated more than once."""
    name = weighting.config.name
    is_compiled = getattr(module.model, "_compiled_call_impl", None) is not None
    if weighting.needs_gradients and is_compiled:
        raise ConfigError(
            f"RecModule must not be compiled with tasks.weighting={name}, which differentiates "
            "each task by itself, got torch.compile; use famo, uncertainty or fixed"
        )
    check_whole_steps(module.trainer.accumulate_grad_batches, weighting)
    for callback in module.trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, GradientAccumulationScheduler):
            check_whole_steps(max(callback.scheduling.values()), weighting)


def check_whole_steps(batches: int, weighting: Weighting) -> None:
    """Raise ConfigError unless a step is one batch."""
    if batches != 1:
        raise ConfigError(
            f"accumulate_grad_batches must be 1 with tasks.weighting={weighting.config.name}, "
            f"which learns from whole steps, got {batches}; raise trainer.batch_size"
        )


def present(batch: Batch, weights: Sequence[float]) -> Tensor:
    """Tasks with a weight above 0 and a row that counts in some process. (T,) bool"""
    labelled_BT = ~batch.labels.isnan()
    if batch.weight is not None:
        labelled_BT = labelled_BT & (batch.weight > 0)[:, None]
    weight_T = torch.tensor(weights, device=labelled_BT.device)
    return (all_sum(labelled_BT.sum(0)) > 0) & (weight_T > 0)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Undo what a training pass leaves in the modules: counts that `on_step_end` would take.

    Attributes and buffers are restored, not values that are written in place.
    """
    kept = [(module, dict(vars(module)), dict(module._buffers)) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes, buffers in kept:
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)
