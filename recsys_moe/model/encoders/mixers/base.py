"""Mixer: what an event's place reads of the places before it and of itself.

Axes: M windows, L places, D width.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn

State: TypeAlias = tuple[Tensor, ...]
"""What is left of the events so far; the first axis of every tensor is that of the windows."""


class Extender(Protocol):
    """A few more events of windows whose state is kept."""

    def extend(self, x_MLD: Tensor, time_ML: Tensor, state: State) -> Tensor:
        """(M, L, D): what `forward` has at the places of further events."""

    def last(self, x_MLD: Tensor, time_ML: Tensor, state: State, count_M: Tensor) -> Tensor:
        """(M, D): the same at the last of `count_M` events."""


class Mixer(nn.Module):
    """Causal: place p reads the places 0..p. `length` bounds what a mixer may keep of the past.

    Inputs are finite at every place. What stands behind a place never changes its output.
    """

    def __init__(self, dim: int, length: int, heads: int = 2) -> None:
        """`dim`: width; `length`: places at most; `heads`: for mixers that have some."""
        super().__init__()
        self.dim, self.length, self.heads = dim, length, heads

    def forward(self, x_MLD: Tensor, time_ML: Tensor) -> Tensor:
        """(M, L, D). `time_ML`: float64 seconds, ascending along the events."""
        raise NotImplementedError

    def read(self, x_MLD: Tensor, time_ML: Tensor, count_M: Tensor) -> tuple[Tensor, State]:
        """`forward`, and the state after the first `count_M` events (at least 1) of each window."""
        raise NotImplementedError

    def start(self, rows: int) -> State:
        """The state before any event, of `rows` windows."""
        raise NotImplementedError

    def step(self, x_MD: Tensor, time_M: Tensor, state: State) -> tuple[Tensor, State]:
        """One more event: what `forward` has at its place (M, D), and the state after it."""
        raise NotImplementedError

    def prepared(self) -> Extender:
        """For a model that learns no more: may keep what depends on its weights alone."""
        return self

    def extend(self, x_MLD: Tensor, time_ML: Tensor, state: State) -> Tensor:
        found = []
        for x_MD, time_M in zip(x_MLD.unbind(1), time_ML.unbind(1), strict=True):
            out_MD, state = self.step(x_MD, time_M, state)
            found.append(out_MD)
        return torch.stack(found, 1)

    def last(self, x_MLD: Tensor, time_ML: Tensor, state: State, count_M: Tensor) -> Tensor:
        """(M, D): the same at the last of `count_M` events."""
        return after(self.extend(x_MLD, time_ML, state), count_M)


def after(x_ML: Tensor, count_M: Tensor) -> Tensor:
    """What stands at the last of `count_M` places of each window (M, L, ...)."""
    windows, width = x_ML.shape[:2]
    place_M = torch.arange(-1, windows * width - 1, width, device=count_M.device) + count_M
    return x_ML.flatten(0, 1).index_select(0, place_M)
