"""Training steps as a CUDA graph: one launch instead of hundreds.

A graph holds what a step starts on the device and not what Python does: no wait, no shape and no
number of it may depend on data or on the step.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from typing import Any

import lightning
import torch
from torch import Tensor, nn

from recsys_moe.data.rows import Batch
from recsys_moe.errors import ConfigError
from recsys_moe.kinds import kind_of
from recsys_moe.model.moe import MoE
from recsys_moe.model.registry import MODELS
from recsys_moe.routers import ROUTERS
from recsys_moe.routers.stream import RandomStream

logger = logging.getLogger("recsys_moe.fit")
WARM_UP = 3
"""Steps before one is recorded: what is made once must be there."""
Module = Any
"""A RecModule, which imports this file."""


class Recorded:
    """What `call` starts on the device, to be started again in one launch.

    `call` reads and writes the same tensors each time, and makes new gradients. It has run before
    and does not run here.
    """

    def __init__(self, call: Callable[[], Any], module: nn.Module) -> None:
        """`module`: whose gradients `call` makes, and from whose streams it draws."""
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        gc.collect()  # what is left of earlier steps remembers their stream
        self.graph = torch.cuda.CUDAGraph()
        for generator in generators(module):
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph):
            self.result = call()
        self.grads = [p.grad for p in self.parameters]

    def __call__(self) -> Any:
        """The result of `call`, and the gradients, with new values in the same tensors."""
        for parameter, grad in zip(self.parameters, self.grads, strict=True):
            parameter.grad = grad  # steps between replays leave others
        self.graph.replay()
        return self.result


def generators(module: nn.Module) -> Iterator[torch.Generator]:
    """Those on a GPU that modules have drawn from."""
    streams = (getattr(one, "stream", None) for one in module.modules())
    for drawn in (of.drawn_from for of in streams if isinstance(of, RandomStream)):
        if drawn is not None and drawn.device.type == "cuda":
            yield drawn


class StepRecorder:
    """Forward and backward pass of a module's steps, replayed for batches of one layout."""

    def __init__(
        self, module: Module, record: Callable[[Callable[[], Any], nn.Module], Any] = Recorded
    ) -> None:
        """`record`: makes of a call what repeats it."""
        self.has_replayed = False
        """Has the last step been replayed? Then gradients are there."""
        self._module, self._record = (module,), record  # in a tuple: it is no part of the module
        self._layout: tuple[Any, ...] = ()
        self._rows = self._steps = 0

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor] | None:
        """`step_losses` of the module, done; None: this step is to run by itself.

        The layout is that of the largest batches: the last one of an epoch has fewer rows.
        """
        self.has_replayed = False
        tensors: list[Any] = list(batch)
        layout, rows = layout_of(batch), len(batch.user)
        if rows > self._rows:
            self._layout, self._rows, self._steps = layout, rows, 0
        if layout != self._layout:
            return None
        self._steps += 1
        if self._steps <= WARM_UP:
            return None
        if self._steps == WARM_UP + 1:
            columns: list[Any] = [of if of is None else of.clone() for of in tensors]
            self._static = Batch(*columns)
            self._recorded = self._record(self._whole, self._module[0])
        to: list[Any] = list(self._static)
        for column, values in zip(to, tensors, strict=True):
            if values is not None:
                column.copy_(values, non_blocking=True)
        self.has_replayed = True
        found: tuple[Tensor, Tensor] = self._recorded()
        return found

    def _whole(self) -> tuple[Tensor, Tensor]:
        """A step without its draw of seeds and without the optimizer's part."""
        module = self._module[0]
        module.zero_grad(set_to_none=True)
        trained, loss = module.step_losses(self._static, 0)
        with torch.autocast(trained.device.type, enabled=False):
            trained.backward()
        return trained.detach(), loss


class ReplayedSteps(lightning.LightningModule):
    """What replays spare Lightning's loop."""

    recorder: StepRecorder | None = None
    """Replays training steps; None: every step runs by itself."""

    def backward(self, loss: Tensor, *given: Any, **named: Any) -> None:
        """Lightning's, unless a replay has done it."""
        if self.recorder is None or not self.recorder.has_replayed:
            super().backward(loss, *given, **named)

    def optimizer_zero_grad(self, *given: Any, **named: Any) -> None:
        """Lightning's, unless a replay has written new gradients over the old."""
        if self.recorder is None or not self.recorder.has_replayed:
            super().optimizer_zero_grad(*given, **named)


def layout_of(batch: Batch) -> tuple[Any, ...]:
    return tuple(
        (of.shape, of.dtype, of.device) if isinstance(of, Tensor) else of is None for of in batch
    )


def recorder_for(module: Module, device: torch.device) -> StepRecorder | None:
    """By `trainer.cuda_graph`. Raises ConfigError where it is true and steps cannot be recorded."""
    asked = module.config.trainer.cuda_graph
    if asked is False:
        return None
    if not (reason := obstacle(module, device)):
        with_static_shapes(module.model)
        return StepRecorder(module)
    if asked != "auto":
        raise ConfigError(
            f"trainer.cuda_graph=true must not be set with {reason}: a CUDA graph cannot hold its "
            "steps; use auto"
        )
    logger.info("training steps are not recorded as a CUDA graph because of %s", reason)
    return None


def with_static_shapes(model: nn.Module) -> None:
    """Dispatch whose shapes do not depend on the choice, in every step, recorded or not: draws of
    dropout follow from the shapes."""
    for one in model.modules():
        if isinstance(one, MoE) and one.dispatch != "dense":
            one.dispatch = "static"


def obstacle(module: Module, device: torch.device) -> str:
    """The setting for which steps cannot be recorded; empty where they can."""
    return next(_obstacles(module, device), "")


def _obstacles(module: Module, device: torch.device) -> Iterator[str]:
    config, model = module.config, module.model
    if device.type != "cuda":
        yield f"a {device.type} device"
    if config.trainer.processes > 1:
        yield f"{config.trainer.processes} processes"
    if config.trainer.precision == "16-mixed":
        yield "trainer.precision=16-mixed"
    if module.weighting is not None:
        yield f"tasks.weighting={module.weighting.config.name}"
    if module.next_item is not None:
        yield "the loss of the next item"
    if type(model) not in MODELS.values():
        yield f"model.name={config.model.name}"
    if model.encoders is not None or model.trend is not None:
        yield "encoders of features, bags, context or events"
    for task in module.schema.tasks:
        if not kind_of(task).repeats:
            yield f"task {task.name} of kind {task.kind}"
    for router in model.routers:
        if type(router) not in ROUTERS.values() or not router.repeats:
            yield f"model.router.name={router.config.name}"
