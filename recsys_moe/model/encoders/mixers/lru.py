"""LRU: a linear recurrence over complex numbers with learned rotations and decays.

Orvieto et al., arXiv 2303.06349, section 3 and table 1; for recommendation: Yue et al.,
arXiv 2310.02367 (LRURec). Complex numbers are pairs of real ones, which every export format has.

Axes: M windows, L places, D width, H complex hidden units, C places of a chunk.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recsys_moe.model.encoders.mixers.base import Mixer, State, after

CHUNK = 16
"""Places that are worked off one after another, in all chunks at once: 2.5 times as fast on a
processor as doubling (64 windows of 200 places, forward and backward)."""
RADIUS = 0.99
"""The largest |lambda| to begin with; its square is uniform below (arXiv 2303.06349, lemma 3.2)."""

Pair = tuple[Tensor, Tensor]
"""Real and imaginary parts."""


class LRU(Mixer):
    """h_p = lambda h_(p-1) + gamma (B x_p + b), y_p = C [Re h_p, Im h_p] + c; by rank alone."""

    def __init__(self, dim: int, length: int, heads: int = 2) -> None:
        super().__init__(dim, length, heads)
        hidden = 2 * dim
        decay_H = -0.5 * torch.log(torch.rand(hidden).clamp(min=1e-6) * RADIUS**2)
        self.log_decay_H = nn.Parameter(decay_H.log())
        self.log_angle_H = nn.Parameter(torch.log(2 * math.pi * torch.rand(hidden) + 1e-4))
        # gamma = sqrt(1 - |lambda|^2): hidden units of one size, whatever their decay (eq. 7)
        self.log_scale_H = nn.Parameter(torch.log(torch.sqrt(-torch.expm1(-2 * decay_H))))
        self.into = nn.Linear(dim, 2 * hidden)
        self.out = nn.Linear(2 * hidden, dim)

    def forward(self, x_MLD: Tensor, time_ML: Tensor) -> Tensor:
        return self.out(torch.cat(self._hidden(x_MLD), -1))

    def read(self, x_MLD: Tensor, time_ML: Tensor, count_M: Tensor) -> tuple[Tensor, State]:
        hidden = self._hidden(x_MLD)
        return self.out(torch.cat(hidden, -1)), tuple(after(part, count_M) for part in hidden)

    def start(self, rows: int) -> State:
        """Real and imaginary parts of the hidden units (M, H)."""
        zero_MH = self.log_decay_H.new_zeros(rows, len(self.log_decay_H))
        return zero_MH, zero_MH.clone()

    def step(self, x_MD: Tensor, time_M: Tensor, state: State) -> tuple[Tensor, State]:
        real_CH, imag_CH = self._powers(1)
        real, imag = _advance((state[0], state[1]), (real_CH[1], imag_CH[1]), self._into(x_MD))
        return self.out(torch.cat([real, imag], -1)), (real, imag)

    def extend(self, x_MLD: Tensor, time_ML: Tensor, state: State) -> Tensor:
        return self._said(self._extended(x_MLD, state))

    def last(self, x_MLD: Tensor, time_ML: Tensor, state: State, count_M: Tensor) -> Tensor:
        return self._said(after(self._extended(x_MLD, state), count_M))

    def _extended(self, x_MLD: Tensor, state: State) -> Tensor:
        """Hidden units (M, L, H) by complex numbers, one operation an event: this is never
        exported."""
        size_H, angle_H = torch.exp(-self.log_decay_H.exp()), self.log_angle_H.exp()
        factor_H, hidden_MH, found = torch.polar(size_H, angle_H), torch.complex(*state), []
        for input_MH in torch.complex(*self._into(x_MLD)).unbind(1):
            hidden_MH = torch.addcmul(input_MH, factor_H, hidden_MH)
            found.append(hidden_MH)
        return torch.stack(found, 1)

    def _said(self, hidden: Tensor) -> Tensor:
        return self.out(torch.cat([hidden.real, hidden.imag], -1))

    def _hidden(self, x_MLD: Tensor) -> Pair:
        return recurrence(self._into(x_MLD), self._powers(CHUNK))

    def _into(self, x: Tensor) -> Pair:
        real, imag = self.into(x).chunk(2, -1)
        scale_H = self.log_scale_H.exp()
        return scale_H * real, scale_H * imag

    def _powers(self, highest: int) -> Pair:
        """lambda^0 .. lambda^highest (highest + 1, H)."""
        exponent_C = torch.arange(highest + 1.0, device=self.log_decay_H.device)[:, None]
        size_CH = torch.exp(-self.log_decay_H.exp() * exponent_C)
        angle_CH = self.log_angle_H.exp() * exponent_C
        return size_CH * angle_CH.cos(), size_CH * angle_CH.sin()


def recurrence(inputs: Pair, powers: Pair) -> Pair:
    """h_p = lambda h_(p-1) + u_p of inputs (M, L, H), given lambda^0 .. lambda^C (C + 1, H).

    First within chunks of C places, all chunks side by side; then from one chunk's end to the
    next; then what entered a chunk is added at its places.
    """
    length, size = inputs[0].shape[1], len(powers[0]) - 1
    chunks = -(-length // size)
    real, imag = (
        F.pad(part, (0, 0, 0, chunks * size - length)).unflatten(1, (chunks, size))
        for part in inputs
    )
    within = _run((real, imag), 2, (powers[0][1], powers[1][1]))
    ends = (within[0][:, :, -1], within[1][:, :, -1])
    after = _run(ends, 1, (powers[0][size], powers[1][size]))
    entering = tuple(F.pad(part[:, :-1], (0, 0, 1, 0))[:, :, None] for part in after)
    whole = _advance((entering[0], entering[1]), (powers[0][1:], powers[1][1:]), within)
    real, imag = (part.flatten(1, 2)[:, :length] for part in whole)
    return real, imag


def _run(inputs: Pair, axis: int, factor: Pair) -> Pair:
    """h_p = factor h_(p-1) + u_p along an axis."""
    places = list(zip(inputs[0].unbind(axis), inputs[1].unbind(axis), strict=True))
    hidden = [places[0]]
    for place in places[1:]:
        hidden.append(_advance(hidden[-1], factor, place))
    real, imag = (torch.stack(part, axis) for part in zip(*hidden, strict=True))
    return real, imag


def _advance(hidden: Pair, factor: Pair, inputs: Pair) -> Pair:
    """factor * hidden + inputs"""
    real = inputs[0] + hidden[0] * factor[0] - hidden[1] * factor[1]
    return real, inputs[1] + hidden[0] * factor[1] + hidden[1] * factor[0]
