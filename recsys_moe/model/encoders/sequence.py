"""What a user did before, in order: a causal encoder of the events of the request.

Axes: B rows, M windows, L events of a window, D width of the embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recsys_moe.model.encoders.base import Encoder
from recsys_moe.model.encoders.mixers import MIXERS, Extender, Mixer, State
from recsys_moe.model.encoders.mixers.base import after
from recsys_moe.model.encoders.moment import SinceLast
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

    def __init__(
        self, mixer: str, dim: int, *, length: int, blocks: int, dropout: float, gain: float = 1.0
    ) -> None:
        """`length`: events of a window at most; `dropout`: of the events' vectors and inside.
        `gain`: what the last normalisation begins with."""
        super().__init__("user")
        self.length = length
        self.first_norm, self.last_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        nn.init.constant_(self.last_norm.weight, gain)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(
            _Block(MIXERS[mixer](dim, length), dim, self.dropout) for _ in range(blocks)
        )
        self.about_3D = nn.Parameter(torch.zeros(3, dim))
        self.expected_D = nn.Parameter(torch.zeros(dim))
        self.so_far_2D = nn.Parameter(torch.zeros(2, dim))
        self.nothing_D = nn.Parameter(torch.zeros(dim))
        self.since_last: SinceLast | None = None
        """Set where the model reads the time since the last event."""

    def forward(self, request: Request) -> Tensor:
        said_BD = self._said(request)
        return said_BD if self.since_last is None else self.since_last(said_BD, request.moment)

    def _said(self, request: Request) -> Tensor:
        """After the last event of each row. (B, D)"""
        if request.event_vectors is not None:
            return request.event_vectors
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
        x_MLD = _dropped(self.dropout, self._entering(item_MLD, events))
        for block in self.blocks:
            x_MLD = block(x_MLD, events.time)
        count_L = torch.arange(1, 1 + x_MLD.shape[1], device=x_MLD.device)
        off_ML, rated_ML = self._sums(item_MLD, events)
        return self.last_norm(x_MLD) + self._so_far(off_ML, rated_ML, count_L).to(x_MLD)

    def read(self, item_MLD: Tensor, events: Events) -> tuple[Tensor, State]:
        """What is said after the events (M, D), and the state, of one row per window."""
        count_M, state = events.place, list[Tensor]()
        x_MLD = self._entering(item_MLD, events)
        parts: Any = self.blocks
        for block in parts:
            x_MLD, kept = block.read(x_MLD, events.time, count_M)
            state += kept
        sums = [after(part, count_M) for part in self._sums(item_MLD, events)] + [count_M.float()]
        out_MD = self.last_norm(after(x_MLD, count_M)) + self._so_far(*sums)
        return out_MD, (torch.stack(sums, -1), after(events.time, count_M), *state)

    def start(self, rows: int) -> State:
        """The state before any event, all 0: sums of how the user rated, ratings and events (M, 3);
        the time of the last event (M,); what the mixers of the blocks keep."""
        zero_M3 = self.nothing_D.new_zeros(rows, 3)
        parts: Any = self.blocks
        kept = [one for block in parts for one in block.mixer.start(rows)]
        return zero_M3, zero_M3.new_zeros(rows, dtype=torch.float64), *kept

    def step(
        self, item_MD: Tensor, value_M: Tensor, time_M: Tensor, state: State
    ) -> tuple[Tensor, State]:
        """One more event: what is said after it (M, D), and the state. As `encode` within 1e-5."""
        sum_M3, before_M, *kept = state
        gap_M = _days(time_M - before_M) * (sum_M3[:, 2] > 0)
        x_MD = self.first_norm(item_MD + self._about(value_M, gap_M))
        now: list[Tensor] = []
        parts: Any = self.blocks
        for block in parts:
            size = block.kept
            x_MD, own = block.step(x_MD, time_M, tuple(kept[:size]))
            now, kept = [*now, *own], kept[size:]
        off_M, one_M = self._off(item_MD, value_M), torch.ones_like(value_M)
        sum_M3 = sum_M3 + torch.stack([off_M, _rated(value_M), one_M], -1)
        out_MD = self.last_norm(x_MD) + self._so_far(*sum_M3.unbind(-1))
        return out_MD, (sum_M3, time_M, *now)

    def prepared(self) -> list[Extender]:
        """The mixers of the blocks, for `extend` of a model that learns no more."""
        parts: Any = self.blocks
        return [block.mixer.prepared() for block in parts]

    def extend(
        self, item_MLD: Tensor, events: Events, state: State, mixers: Sequence[Extender]
    ) -> Tensor:
        """(M, D): what is said after a few more events, at least one for each row of the state,
        as after as many `step`s within 1e-5. Padding has no ratings. `mixers`: `prepared`."""
        sum_M3, before_M, *kept = state
        count_M = events.place
        gap_ML = _days(events.time.diff(dim=1, prepend=before_M[:, None]))
        gap_ML[:, 0] *= sum_M3[:, 2] > 0
        x_MLD = self.first_norm(item_MLD + self._about(events.value, gap_ML))
        parts: Any = self.blocks
        for block, mixer in zip(parts, mixers, strict=True):
            size = block.kept
            asked = block.mixer_norm(x_MLD), events.time, tuple(kept[:size])
            if block is parts[-1]:
                x_MLD, mixed = after(x_MLD, count_M), mixer.last(*asked, count_M)
            else:
                mixed = mixer.extend(*asked)
            x_MLD, kept = block.join(x_MLD, mixed), kept[size:]
        off_ML, rated_ML = self._off(item_MLD, events.value), _rated(events.value)
        sum_M3 = sum_M3 + torch.stack([off_ML.sum(1), rated_ML.sum(1), count_M], -1)
        return self.last_norm(x_MLD) + self._so_far(*sum_M3.unbind(-1))

    def _entering(self, item_MLD: Tensor, events: Events) -> Tensor:
        gap_ML = F.pad(_days(events.time.diff(dim=1)), (1, 0))
        return self.first_norm(item_MLD + self._about(events.value, gap_ML).to(item_MLD))

    def _sums(self, item_MLD: Tensor, events: Events) -> tuple[Tensor, Tensor]:
        """So far ratings less what their items make expect, and the number of ratings, (M, L)."""
        off_ML = self._off(item_MLD, events.value)
        return off_ML.cumsum(1), _rated(events.value).cumsum(1)

    def _off(self, item: Tensor, value: Tensor) -> Tensor:
        return (value - item.float() @ self.expected_D).nan_to_num(0.0)

    def _so_far(self, off: Tensor, rated: Tensor, count: Tensor) -> Tensor:
        """What is added for how the user rates, and for the number of events. (..., D)

        How a user rates: the mean, as if SHRINKAGE more ratings had been as expected.
        """
        mean = off / (rated + SHRINKAGE)
        return torch.stack([mean, count.log1p().expand_as(mean)], -1) @ self.so_far_2D

    def _about(self, value: Tensor, gap: Tensor) -> Tensor:
        """What is added for the rating and for the time since the event before. (..., D)"""
        parts = (value.nan_to_num(0.0), value.isnan().float(), gap.float())
        return torch.stack(parts, -1) @ self.about_3D

    def reseed(self, seed: int) -> None:
        self.dropout.stream.reseed(stream_seed(seed, "sequence"))


class _Block(nn.Module):
    def __init__(self, mixer: Mixer, dim: int, dropout: Dropout) -> None:
        super().__init__()
        self.mixer, self.dropout = mixer, dropout
        self.kept = len(mixer.start(0))
        """Tensors of the mixer's state."""
        self.mixer_norm, self.ff_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.wide, self.narrow = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x_MLD: Tensor, time_ML: Tensor) -> Tensor:
        return self.join(x_MLD, self.mixer(self.mixer_norm(x_MLD), time_ML))

    def read(self, x_MLD: Tensor, time_ML: Tensor, count_M: Tensor) -> tuple[Tensor, State]:
        mixed_MLD, state = self.mixer.read(self.mixer_norm(x_MLD), time_ML, count_M)
        return self.join(x_MLD, mixed_MLD), state

    def step(self, x_MD: Tensor, time_M: Tensor, state: State) -> tuple[Tensor, State]:
        mixed_MD, state = self.mixer.step(self.mixer_norm(x_MD), time_M, state)
        return self.join(x_MD, mixed_MD), state

    def join(self, x: Tensor, mixed: Tensor) -> Tensor:
        x = x + _dropped(self.dropout, mixed)
        hidden = F.gelu(self.wide(self.ff_norm(x)))
        return x + _dropped(self.dropout, self.narrow(hidden))


def _days(seconds: Tensor) -> Tensor:
    return (seconds.clamp(min=0) / DAY).log1p()


def _rated(value: Tensor) -> Tensor:
    """1 for an event with a rating, else 0."""
    return (~value.isnan()).float()


def _dropped(dropout: Dropout, x_MLD: Tensor) -> Tensor:
    mask_MLD = dropout.mask(tuple(x_MLD.shape), x_MLD)
    return x_MLD if mask_MLD is None else x_MLD * mask_MLD * dropout.scale
