"""Attention over the last `length` events, with a bias of distance and of the gap in time.

SASRec (arXiv 1808.09781) with relative places (arXiv 1803.02155 as biases, as in T5, arXiv
1910.10683) and times (HSTU, arXiv 2402.17152, which has buckets of the logarithm).

Axes: M windows, L places (P asks, Q is asked), D width, H heads, C channels of a head, S places
of the state.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recsys_moe.errors import ConfigError
from recsys_moe.model.encoders.mixers.base import Mixer, State

YEAR = 365 * 86_400.0
"""The gap at which the logarithm's measure is 1."""


class Attention(Mixer):
    """softmax(q k / sqrt(C) + rank_h[p - q] + a_h g + b_h g^2) v

    with g = log(1 + seconds between) / log(1 + seconds of a year).
    """

    def __init__(self, dim: int, length: int, heads: int = 2) -> None:
        super().__init__(dim, length, heads)
        if dim % heads:
            raise ConfigError(
                f"attention: the width must be a multiple of {heads} heads, got {dim}"
            )
        self.into = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.rank_HL = nn.Parameter(torch.zeros(heads, length))
        self.gap_H2 = nn.Parameter(torch.zeros(heads, 2))

    def forward(self, x_MLD: Tensor, time_ML: Tensor) -> Tensor:
        place_L = torch.arange(x_MLD.shape[1], device=x_MLD.device)
        rank_PQ = place_L[:, None] - place_L
        gap_MPQ = time_ML[:, :, None] - time_ML[:, None]
        apart = (rank_PQ < 0) | (rank_PQ >= self.length)
        bias_MHPQ = self._bias(rank_PQ, gap_MPQ).masked_fill(apart, -math.inf)
        query, key, value = (self._heads(part) for part in self.into(x_MLD).chunk(3, -1))
        mixed_MHPC = F.scaled_dot_product_attention(query, key, value, attn_mask=bias_MHPQ)
        return self._out(mixed_MHPC)

    def read(self, x_MLD: Tensor, time_ML: Tensor, count_M: Tensor) -> tuple[Tensor, State]:
        place_MS = count_M[:, None] + torch.arange(-self.length, 0, device=x_MLD.device)
        own_M1, there_MS = torch.arange(len(count_M))[:, None], place_MS >= 0
        _, key_MLD, value_MLD = self.into(x_MLD).chunk(3, -1)
        place_MS = place_MS.clamp(min=0)
        key_MSD, value_MSD = (
            x[own_M1, place_MS] * there_MS[..., None] for x in (key_MLD, value_MLD)
        )
        state = key_MSD, value_MSD, time_ML[own_M1, place_MS] * there_MS, there_MS
        return self(x_MLD, time_ML), state

    def start(self, rows: int) -> State:
        """Keys and values (M, S, D), times (M, S) and what is there (M, S), newest last."""
        empty = self.rank_HL.new_zeros(rows, self.length, self.dim)
        time_MS = empty.new_zeros(rows, self.length, dtype=torch.float64)
        return empty, empty.clone(), time_MS, time_MS.bool()

    def step(self, x_MD: Tensor, time_M: Tensor, state: State) -> tuple[Tensor, State]:
        query_MD, key_MD, value_MD = self.into(x_MD).chunk(3, -1)
        there_M = torch.ones_like(time_M, dtype=torch.bool)
        newest = key_MD, value_MD, time_M, there_M
        key, value, time_MS, there_MS = kept = tuple(
            torch.cat([old[:, 1:], new[:, None]], 1) for old, new in zip(state, newest, strict=True)
        )
        rank_S = torch.arange(self.length - 1, -1, -1, device=x_MD.device)
        bias_MHPQ = self._bias(rank_S[None], (time_M[:, None] - time_MS)[:, None])
        bias_MHPQ = bias_MHPQ.masked_fill(~there_MS[:, None, None], -math.inf)
        query, key, value = (self._heads(part) for part in (query_MD[:, None], key, value))
        mixed_MHPC = F.scaled_dot_product_attention(query, key, value, attn_mask=bias_MHPQ)
        return self._out(mixed_MHPC)[:, 0], kept

    def _heads(self, part: Tensor) -> Tensor:
        """(M, L, D) -> (M, H, L, C)"""
        return part.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _out(self, mixed_MHPC: Tensor) -> Tensor:
        # Not as a view: exports replace the kernel by one that lays its result out otherwise.
        return self.out(torch.cat(mixed_MHPC.unbind(1), -1))

    def _bias(self, rank_PQ: Tensor, gap_MPQ: Tensor) -> Tensor:
        """(M, H, P, Q); ranks and gaps below 0 count as 0, ranks above the last as the last."""
        rank_HPQ = self.rank_HL[:, rank_PQ.clamp(0, self.length - 1)]
        gap_M1PQ = torch.log1p(gap_MPQ.clamp(min=0).to(rank_HPQ.dtype))[:, None] / math.log1p(YEAR)
        first, second = self.gap_H2[:, :, None, None].unbind(1)
        return rank_HPQ + gap_M1PQ * (first + second * gap_M1PQ)
