"""Record a step as a CUDA graph: one launch instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import torch
from torch import nn

from recsys_moe.routers.stream import RandomStream

T = TypeVar("T")


class Recorded(Generic[T]):
    """What `call` starts on the device, to be started again in one launch.

    `call` reads and writes the same tensors each time; gradients it sets are new ones. It has run
    before, so that all it makes once is there, and does not run when it is recorded.
    """

    def __init__(self, call: Callable[[], T], module: nn.Module) -> None:
        """`module`: whose gradients `call` sets, and whose streams it draws from."""
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        module.zero_grad(set_to_none=True)  # those that it makes belong to the graph
        self.graph = torch.cuda.CUDAGraph()
        for generator in generators(module):
            self.graph.register_generator_state(generator)
        with torch.cuda.graph(self.graph):
            self.result = call()
        self.grads = [p.grad for p in self.parameters]

    def __call__(self) -> T:
        """Replay: the result has the new values, and so do the gradients."""
        self.attach()
        self.graph.replay()
        return self.result

    def attach(self) -> None:
        """Give the parameters the gradients of the graph; steps between have others."""
        for parameter, grad in zip(self.parameters, self.grads, strict=True):
            parameter.grad = grad


def generators(module: nn.Module) -> Iterable[torch.Generator]:
    """Those on the device that modules have drawn from."""
    streams = (getattr(one, "stream", None) for one in module.modules())
    for stream in streams:
        if isinstance(stream, RandomStream) and (drawn := stream.drawn_from) is not None:
            yield drawn
