"""What a user did before, in order: a causal encoder of the events of the request.

Axes: B rows, M windows, L events of a window, D width of the embeddings.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recsys_moe.model.encoders.base import Encoder
from recsys_moe.model.encoders.mixers import MIXERS, Mixer
from recsys_moe.model.experts import Dropout
from recsys_moe.model.request import Events, Request
from recsys_moe.seeds import stream_seed

DAY = 86_400.0
SHRINKAGE = 4.0


class EventSequence(Encoder):
    """The last output of blocks of a mixer and a feed-forward layer over a user's events.

    An event enters as the vector of its item, which the model fills in, plus learned vectors for
    its rating, for a missing rating, and for the time since the event before. Blocks normalise
    first: x + mixer(norm x), then x + ff(norm x). Dropout acts on what enters and on what a block
    adds; inside the wide layer its draws would cost as much as the layer. A user without events has
    a learned vector. Beside the blocks stand the mean of the user's ratings and the count of
    events, which a few rows teach.
    """

    is_static: ClassVar[bool] = False

    def __init__(self, mixer: str, dim: int, *, length: int, blocks: int, dropout: float) -> None:
        """`length`: events of a window at most; `dropout`: of the events' vectors and inside."""
        super().__init__("user")
        self.length = length
        self.first_norm, self.last_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            _Block(MIXERS[mixer](dim, length), dim, self.dropout) for _ in range(blocks)
        )
        self.about_3D = nn.Parameter(torch.zeros(3, dim))
        self.expected_D = nn.Parameter(torch.zeros(dim))
        self.so_far_2D = nn.Parameter(torch.zeros(2, dim))
        self.nothing_D = nn.Parameter(torch.zeros(dim))

    def forward(self, request: Request) -> Tensor:
        events = request.events
        if events is None or request.item_vectors is None:
            return self.nothing_D.expand(request.rows, -1)
        if torch.compiler.is_exporting():
            last_BD = self._last(request.item_vectors, events)
        elif not request.rows:
            last_BD = self._of_no_row(request.item_vectors)
        else:
            last_BD = self._last_by_width(request.item_vectors, events)
        return torch.where(events.place[:, None] > 0, last_BD, self.nothing_D)

    def _of_no_row(self, item_MLD: Tensor) -> Tensor:
        """(0, D), with gradients of 0, which several devices add up."""
        item_11D = item_MLD.new_zeros(1, 1, item_MLD.shape[-1])
        one_11, one_1 = item_11D[..., 0], torch.zeros_like(item_11D[:, 0, 0]).long()
        events = Events(one_11.long(), one_11, one_11.double(), one_1, one_1)
        return self._last(item_11D, events)[:0]

    def _last(self, item_MLD: Tensor, events: Events) -> Tensor:
        """What is said after the last event that each row reads. (B, D)"""
        out_MLD = self.encode(item_MLD, events)
        return out_MLD[events.window, (events.place - 1).clamp(min=0)]

    def _last_by_width(self, item_MLD: Tensor, events: Events) -> Tensor:
        """The same for short windows apart: half of the places of ordinary logs are padding."""
        windows, width = events.item.shape
        zero_M = events.place.new_zeros(windows)
        used_M = zero_M.scatter_reduce(0, events.window, events.place, "amax")
        parts, rows, most = [], [], 0
        for stop in dict.fromkeys([-(-width // 4), -(-width // 2), width]):
            own_M = (used_M > most) & (used_M <= stop) | (used_M == 0) & (most == 0)
            row_X = own_M[events.window].nonzero()[:, 0]
            if len(row_X):
                kept_K = own_M.nonzero()[:, 0]
                part = events._replace(
                    item=events.item[kept_K, :stop],
                    value=events.value[kept_K, :stop],
                    time=events.time[kept_K, :stop],
                    window=(own_M.cumsum(0) - 1)[events.window[row_X]],
                    place=events.place[row_X],
                )
                parts.append(self._last(item_MLD[kept_K, :stop], part))
                rows.append(row_X)
            most = stop
        return torch.cat(parts)[torch.cat(rows).argsort(stable=True)]

    def encode(self, item_MLD: Tensor, events: Events) -> Tensor:
        """(M, L, D): after each event of the windows what is said of the user."""
        x_MLD = _dropped(self.dropout, self.first_norm(item_MLD + self._about(events).to(item_MLD)))
        for block in self.blocks:
            x_MLD = block(x_MLD, events.time)
        return self.last_norm(x_MLD) + self._so_far(item_MLD, events).to(x_MLD)

    def _so_far(self, item_MLD: Tensor, events: Events) -> Tensor:
        """What is added for how the user rates, and for the number of events. (M, L, D)

        How a user rates: the mean of ratings less what their items make expect, as if SHRINKAGE
        more had been as expected.
        """
        off_ML = (events.value - item_MLD.float() @ self.expected_D).nan_to_num(0.0)
        rated_ML = (~events.value.isnan()).float().cumsum(1)
        mean_ML = off_ML.cumsum(1) / (rated_ML + SHRINKAGE)
        number_L = torch.arange(1, 1 + off_ML.shape[1], device=off_ML.device)
        count_ML = number_L.log1p().expand_as(off_ML)
        return torch.stack([mean_ML, count_ML], -1) @ self.so_far_2D

    def _about(self, events: Events) -> Tensor:
        """What is added for the rating and for the time since the event before. (M, L, D)"""
        missing_ML = events.value.isnan()
        gap_ML = (events.time.diff(dim=1).clamp(min=0) / DAY).log1p()
        gap_ML = F.pad(gap_ML, (1, 0))
        parts = (events.value.nan_to_num(0.0), missing_ML.float(), gap_ML.float())
        return torch.stack(parts, -1) @ self.about_3D

    def reseed(self, seed: int) -> None:
        self.dropout.stream.reseed(stream_seed(seed, "sequence"))


class _Block(nn.Module):
    def __init__(self, mixer: Mixer, dim: int, dropout: Dropout) -> None:
        super().__init__()
        self.mixer, self.dropout = mixer, dropout
        self.mixer_norm, self.ff_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.wide, self.narrow = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x_MLD: Tensor, time_ML: Tensor) -> Tensor:
        x_MLD = x_MLD + _dropped(self.dropout, self.mixer(self.mixer_norm(x_MLD), time_ML))
        hidden_MLH = F.gelu(self.wide(self.ff_norm(x_MLD)))
        return x_MLD + _dropped(self.dropout, self.narrow(hidden_MLH))


def _dropped(dropout: Dropout, x_MLD: Tensor) -> Tensor:
    mask_MLD = dropout.mask(tuple(x_MLD.shape), x_MLD)
    return x_MLD if mask_MLD is None else x_MLD * mask_MLD * dropout.scale
