"""LRU: a linear recurrence over complex numbers with learned rotations and decays.

Orvieto et al., arXiv 2303.06349, section 3 and table 1; for recommendation: Yue et al.,
arXiv 2310.02367 (LRURec). Complex numbers are pairs of real ones, which every export format has.

Axes: M windows, L places, D width, H complex hidden units, C places of a chunk
or powers of lambda.
"""

from __future__ import annotations

import math
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recsys_moe.model.encoders.mixers.base import Extender, Mixer, State, after

CHUNK = 16
"""Places that are worked off one after another, in all chunks at once: 2.5 times as fast on a
processor as doubling (64 windows of 200 places, forward and backward)."""
FEW = 16
"""Further events of a window whose last output is one product, with a (D, D) matrix for each."""
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

    def prepared(self) -> Extender:
        return PreparedLRU(self)

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


class PreparedLRU:
    """`extend` and `last` of an LRU that learns no more, by complex numbers: never exported.

    A unit's real and imaginary part lie side by side, and gamma is part of B. The last output is
    y_n = Re(C lambda^n h_0) + sum_k K_k x_(n-k) + c_n with K_k = Re(C lambda^k gamma B): of all but
    that one no hidden units are needed.
    """

    @torch.no_grad()
    def __init__(self, lru: LRU) -> None:
        lru = deepcopy(lru).double()  # the kernels are products of many
        powers_CH = torch.complex(*lru._powers(FEW))
        into_HE = torch.cat([lru.into.weight, lru.into.bias[:, None]], 1)  # E = D + 1, with b
        into_HE = torch.complex(*into_HE.chunk(2)) * lru.log_scale_H.exp()[:, None]
        out_DH = torch.complex(*lru.out.weight.chunk(2, 1))
        kernel_CED = torch.einsum("dh,ch,he->ced", out_DH.conj(), powers_CH[:FEW], into_HE).real
        self._into = _side_by_side(into_HE.T).T.contiguous()
        self._out, self._bias_D = _side_by_side(out_DH), lru.out.bias.float()
        self._kernel_XD = kernel_CED[:, :-1].flip(0).flatten(0, 1).float()
        constant_CD = F.pad(kernel_CED[:, -1].cumsum(0), (0, 0, 1, 0))
        self._constant_CD = (constant_CD + lru.out.bias).float()
        self._powers_CH = powers_CH.to(torch.complex64)

    def extend(self, x_MLD: Tensor, time_ML: Tensor, state: State) -> Tensor:
        hidden = F.linear(x_MLD, self._into[:, :-1], self._into[:, -1])
        hidden_MLH = torch.view_as_complex(hidden.unflatten(-1, (-1, 2)))
        before_MH, factor_H = torch.complex(*state), self._powers_CH[1]
        for hidden_MH in hidden_MLH.unbind(1):
            before_MH = hidden_MH.addcmul_(factor_H, before_MH)
        return F.linear(hidden, self._out, self._bias_D)

    def last(self, x_MLD: Tensor, time_ML: Tensor, state: State, count_M: Tensor) -> Tensor:
        width = x_MLD.shape[1]
        if width > FEW:
            return after(self.extend(x_MLD, time_ML, state), count_M)
        hidden_MH = self._powers_CH.index_select(0, count_M) * torch.complex(*state)
        said_MD = F.linear(torch.view_as_real(hidden_MH).flatten(1), self._out)
        kernel_XD = self._kernel_XD[-width * x_MLD.shape[2] :]
        said_MD.addmm_(aligned(x_MLD, count_M).flatten(1), kernel_XD)
        return said_MD.add_(self._constant_CD.index_select(0, count_M))


def aligned(x_MLD: Tensor, count_M: Tensor) -> Tensor:
    """The first `count_M` places at the right end, and zeros before them."""
    if int(count_M.min()) == x_MLD.shape[1]:
        return x_MLD
    place_ML = torch.arange(-x_MLD.shape[1], 0) + count_M[:, None]
    x_MLD = x_MLD.take_along_dim(place_ML.clamp(min=0)[..., None], 1)
    return x_MLD.mul_((place_ML >= 0)[..., None])


def _side_by_side(of_units: Tensor) -> Tensor:
    """Complex numbers (..., H) as (..., 2 H) real ones."""
    return torch.view_as_real(of_units).flatten(-2).float()


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
