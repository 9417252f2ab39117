"""Decay: weighted means of the past whose weights fall with rank or with time, at learned rates.

With the distance d of an event from the place that reads it, K pools have the weights
exp(-rate_k d): half of them with the number of events in between as d, half with the seconds.
(Rates on real time and a gate: MARS, arXiv 2606.03718.)

Axes: M windows, L places, D width, K pools, C channels of a pool, E = C + 1 with its weights.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recsys_moe.model.encoders.mixers.base import Mixer, State, after

POOLS = 8
CHUNK = 16
"""Places that are worked off one after another, in all chunks at once."""
RANKS = (0.03, 2.0)
"""Rates per event to begin with: the slowest pool keeps some 30 events, the fastest one or two."""
SECONDS = (1 / (90 * 86_400), 1 / 60)
"""Rates per second to begin with: from three months to a minute."""


class Decay(Mixer):
    """y = W_out (silu(W_gate x) * pools of (W_in x)); each pool is a mean and has its channels."""

    def __init__(self, dim: int, length: int, heads: int = 2) -> None:
        super().__init__(dim, length, heads)
        half, self.channels = POOLS // 2, math.ceil(2 * dim / POOLS)
        self.into = nn.Linear(dim, 2 * POOLS * self.channels)
        self.out = nn.Linear(POOLS * self.channels, dim)
        log_rate_K = torch.cat([_spaced(RANKS, half), _spaced(SECONDS, POOLS - half)])
        self.log_rate_K = nn.Parameter(log_rate_K)

    def forward(self, x_MLD: Tensor, time_ML: Tensor) -> Tensor:
        return self._out(*self._sums(x_MLD, time_ML))

    def read(self, x_MLD: Tensor, time_ML: Tensor, count_M: Tensor) -> tuple[Tensor, State]:
        sum_MLKE, gate_MLKC = self._sums(x_MLD, time_ML)
        state = after(sum_MLKE, count_M), after(time_ML, count_M)
        return self._out(sum_MLKE, gate_MLKC), state

    def _sums(self, x_MLD: Tensor, time_ML: Tensor) -> tuple[Tensor, Tensor]:
        entry_MLKE, gate_MLKC = self._into(x_MLD)
        gap_ML = F.pad(time_ML[:, 1:] - time_ML[:, :-1], (1, 0))
        return decayed_sums(entry_MLKE, self._decay(gap_ML)), gate_MLKC

    def start(self, rows: int) -> State:
        """Weighted sums and, last, the weights' sum (M, K, E); the time of the last event (M,)."""
        sum_MKE = self.log_rate_K.new_zeros(rows, POOLS, self.channels + 1)
        return sum_MKE, sum_MKE.new_zeros(rows, dtype=torch.float64)

    def step(self, x_MD: Tensor, time_M: Tensor, state: State) -> tuple[Tensor, State]:
        entry_MKE, gate_MKC = self._into(x_MD)
        decay_MK = self._decay(time_M - state[1])
        sum_MKE = torch.exp(-decay_MK)[..., None] * state[0] + entry_MKE
        return self._out(sum_MKE, gate_MKC), (sum_MKE, time_M)

    def extend(self, x_MLD: Tensor, time_ML: Tensor, state: State) -> Tensor:
        entry_MLKE, gate_MLKC = self._into(x_MLD)
        gap_ML = time_ML.diff(dim=1, prepend=state[1][:, None])
        factor_MLKE = torch.exp(-self._decay(gap_ML))[..., None]
        first_MKE = torch.addcmul(entry_MLKE[:, 0], factor_MLKE[:, 0], state[0])
        entry_MLKE = torch.cat([first_MKE[:, None], entry_MLKE[:, 1:]], 1)
        return self._out(_run(entry_MLKE, factor_MLKE, 1), gate_MLKC)

    def _decay(self, gap: Tensor) -> Tensor:
        """Rate times distance (..., K) of events `gap` seconds (...) and one rank apart."""
        rank, time = self.log_rate_K.exp().chunk(2)
        seconds = gap.clamp(min=0).to(time.dtype)[..., None]
        return torch.cat([rank.expand(*gap.shape, -1), time * seconds], -1)

    def _into(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Values with a weight of 1 behind them (..., K, E), gates (..., K, C)."""
        value, gate = self.into(x).unflatten(-1, (2, POOLS, self.channels)).unbind(-3)
        return F.pad(value, (0, 1), value=1.0), F.silu(gate)

    def _out(self, sums: Tensor, gate: Tensor) -> Tensor:
        return self.out((sums[..., :-1] / sums[..., -1:] * gate).flatten(-2))


def decayed_sums(entry_MLKE: Tensor, decay_MLK: Tensor) -> Tensor:
    """s_p = exp(-decay_p) s_(p-1) + entry_p, from s_(-1) = 0 (M, L, K, E).

    First within chunks, all side by side; then from one chunk's end to the next; then what
    entered a chunk is added at its places.
    """
    length = entry_MLKE.shape[1]
    chunks = -(-length // CHUNK)
    behind, shape = chunks * CHUNK - length, (chunks, CHUNK)
    entry = F.pad(entry_MLKE, (0, 0, 0, 0, 0, behind)).unflatten(1, shape)
    decay = F.pad(decay_MLK, (0, 0, 0, behind)).unflatten(1, shape)[..., None]
    within = _run(entry, torch.exp(-decay), 2)
    entering = torch.exp(-decay.cumsum(2))
    after = _run(within[:, :, -1], entering[:, :, -1], 1)
    before = F.pad(after[:, :-1], (0, 0, 0, 0, 1, 0))[:, :, None]
    return (within + entering * before).flatten(1, 2)[:, :length]


def _run(entry: Tensor, factor: Tensor, axis: int) -> Tensor:
    """s_p = factor_p s_(p-1) + entry_p along an axis."""
    entries, factors = entry.unbind(axis), factor.unbind(axis)
    sums = [entries[0]]
    for place in range(1, len(entries)):
        sums.append(torch.addcmul(entries[place], factors[place], sums[-1]))
    return torch.stack(sums, axis)


def _spaced(ends: tuple[float, float], count: int) -> Tensor:
    """Logarithms of `count` rates, evenly from one end to the other."""
    return torch.linspace(math.log(ends[0]), math.log(ends[1]), count)
