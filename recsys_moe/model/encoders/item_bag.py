"""Item bags (SVD++ implicit feedback): pooled embeddings of the neighbours of a user or item.

Axes: B batch, U distinct anchors of a batch, N anchors and one more for the OOV id, P entries
(which row belongs to which anchor, anchor after anchor), R rows of a table, W its width, J
neighbours, L levels of the rating, D width of the embeddings.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recsys_moe.model.encoders.bag_sums import bag_sums
from recsys_moe.model.encoders.base import Encoder, Entity, shown
from recsys_moe.model.encoders.features import entries_of
from recsys_moe.model.request import Request
from recsys_moe.routers.stream import RandomStream
from recsys_moe.seeds import stream_seed

MOST_ROWS = 1 << 17
"""Of a table that LinearItemBag makes in every step; a larger one it never makes."""


class ItemBag(Encoder):
    """Pooled embeddings of the neighbours of an anchor in training: SVD++ (Koren 2008).

    Anchors are users and neighbours the items they interacted with, or the other way round: x_u =
    K |N(u)|^-1/2 sum_{j in N(u)} y_j, a table row y_j per neighbour, or per neighbour and level of
    the rating. Two rules keep the label of a training row out of its bag (docs/how-to/features.md):

    - The pool of a row leaves out the neighbour of that row, or a random one where it is not in
      the bag. Otherwise a missing neighbour would reveal a positive.
    - The pool leaves out a random share `dropout` of the bag, drawn for each anchor and batch.
      Otherwise the embedding of the anchor's id could learn the whole sum, and the difference
      would reveal the missing neighbour.

    A training step reads at most `sample` neighbours of an anchor: of larger bags a systematic
    sample, each neighbour equally likely, whose sum is scaled up. Otherwise a batch reads most of a
    large log, as it has the most popular items.
    """

    first_N: Tensor
    row_P: Tensor
    key_P: Tensor

    def __init__(
        self,
        entity: Entity,
        sizes: tuple[int, int],
        *,
        levels: int,
        dims: tuple[int, int],
        dropout: float,
        sample: int = 0,
    ) -> None:
        """`entity`: what the anchors are; `sizes`: anchors and neighbours; `levels`: table rows per
        neighbour; `dims`: width of the pool and of the embeddings; `sample`: 0 for whole bags.

        A pool of width 0 is as wide as the embeddings, and K is then the identity and not learned,
        so that weight decay of the table bounds the pool (see DiagonalTerm).
        """
        super().__init__(entity)
        anchors, self.neighbours = sizes
        self.rate, self.sample = dropout, sample
        self._kept: tuple[Tensor, Tensor] | None = None
        width, dim = dims[0] or dims[1], dims[1]
        self._start_table(levels, width)
        # Draws no random numbers: the rest of the model starts as it does without a bag.
        self.kernel_DW = nn.Parameter(torch.eye(dim, width), requires_grad=bool(dims[0]))
        self.register_buffer("first_N", torch.zeros(anchors + 2, dtype=torch.int64), False)
        self.register_buffer("row_P", torch.zeros(0, dtype=torch.int32), False)
        self.register_buffer("key_P", torch.zeros(0, dtype=torch.int64), False)
        self.stream = RandomStream()

    def _start_table(self, levels: int, width: int) -> None:
        self.table_RW = nn.Parameter(torch.zeros(levels * self.neighbours, width))

    def table(self) -> Tensor:
        """(R, W), level after level."""
        return self.table_RW

    @torch.no_grad()
    def init_from(self, table_RW: Tensor, kernel_DW: Tensor) -> None:
        """Copy the `table`, whose rows are these, and the kernel of another bag (warm start)."""
        self.table_RW.copy_(table_RW)
        self.kernel_DW.copy_(kernel_DW)

    def cold_start_state(self) -> dict[str, Tensor]:
        """The weights that cold-start users and items need."""
        return {"table_RW": self.table().detach(), "kernel_DW": self.kernel_DW.detach()}

    def reseed(self, seed: int) -> None:
        """Streams keep the names of version 0.1."""
        name = "history" if self.entity == "user" else "item_history"
        self.stream.reseed(stream_seed(seed, name))

    def set_entries(self, first_N: Tensor, row_P: Tensor) -> None:
        """Anchor u has the rows row_P[first_N[u]:first_N[u + 1]] (int32), level x neighbours +
        neighbour, by ascending neighbour, each neighbour at most once."""
        anchor_P = torch.repeat_interleave(first_N.diff())
        self.key_P = self._key(anchor_P, row_P % self.neighbours)
        self.first_N, self.row_P = first_N, row_P

    def _key(self, anchor_B: Tensor, neighbour_B: Tensor) -> Tensor:
        return anchor_B.long() * (self.neighbours + 1) + neighbour_B

    def forward(self, request: Request) -> Tensor:
        """In training without the neighbour of each row: the item of a user, or the user of an
        item."""
        pair = (shown(request.user), shown(request.item))
        anchor_B, neighbour_B = pair if self.entity == "user" else pair[::-1]
        anchor_U, place_B = anchor_B.long().unique(return_inverse=True)
        if self.training:
            return F.linear(self._without_neighbour(anchor_U, place_B, neighbour_B), self.kernel_DW)
        return self.of_entities(anchor_U)[place_B]

    def of_entities(self, index_U: Tensor) -> Tensor:
        """The whole bags."""
        return F.linear(self._whole(index_U), self.kernel_DW)

    def keep_pools(self, is_on: bool) -> None:
        """Keep the pool of each anchor from its first evaluation on, or drop them and stop: while
        weights stay, each bag is then read once, and not in every batch with its anchor."""
        self._kept = None
        if is_on:
            anchors = len(self.first_N) - 1
            is_known_N = torch.zeros(anchors, dtype=torch.bool, device=self.first_N.device)
            self._kept = is_known_N, self.kernel_DW.new_empty(anchors, self.kernel_DW.shape[1])

    def _whole(self, index_U: Tensor) -> Tensor:
        """Scaled sums (U, W) of whole bags."""
        if self._kept is None:
            entry_P, start_U = entries_of(self.first_N, index_U)
            return self._sums(self.row_P[entry_P], start_U) * self._scale(index_U)
        (is_known_N, pool_NW), self._kept = self._kept, None
        new = index_U[~is_known_N[index_U]].unique()
        pool_NW[new], is_known_N[new] = self._whole(new), True
        self._kept = is_known_N, pool_NW
        return pool_NW[index_U]

    def _sums(self, row_P: Tensor, start_U: Tensor) -> Tensor:
        """Sums (U, W) of the rows of the table from each start to the next."""
        return bag_sums(self.table(), row_P, start_U)

    def _scale(self, anchor_U: Tensor) -> Tensor:
        count_U = self.first_N[anchor_U + 1] - self.first_N[anchor_U]
        return count_U.clamp(min=1).to(self.kernel_DW).rsqrt()[:, None]

    def _without_neighbour(self, anchor_U: Tensor, place_B: Tensor, neighbour_B: Tensor) -> Tensor:
        """Pools (B, W) of a random part of the bags, without the neighbours of the rows."""
        entry_P, start_U, more_U1 = self._sampled(anchor_U)
        keep_P = self._draw(len(entry_P)) >= self.rate
        kept_K = keep_P.nonzero()[:, 0]
        left_B = self._left_out(anchor_U[place_B], neighbour_B)
        # Its place among the entries of this batch, which ascend; before them where it has none.
        here_B = torch.searchsorted(entry_P, left_B)
        here_B = here_B.where(F.pad(entry_P, (0, 1), value=-2)[here_B] == left_B, -1)
        gone_B = F.pad(keep_P, (1, 0))[here_B + 1]
        row_P = self.row_P[torch.cat([entry_P[kept_K], left_B[gone_B]])]
        gone_start_B = len(kept_K) + gone_B.cumsum(0) - gone_B.long()
        start = torch.cat([torch.searchsorted(kept_K, start_U), gone_start_B])
        sum_UW, gone_BW = self._sums(row_P, start).split([len(anchor_U), len(place_B)])
        scale_U1 = self._scale(anchor_U) / (1 - self.rate) * more_U1
        # index_select: two threads add up the gradient of indexing in an order of chance.
        return (sum_UW.index_select(0, place_B) - gone_BW) * scale_U1[place_B]

    def _sampled(self, anchor_U: Tensor) -> tuple[Tensor, Tensor, Tensor | int]:
        """Entries (P,) of the bags of ascending anchors, at most `sample` of each; where those of
        each start (U,); and how many times as many its bag has (U, 1)."""
        if not self.sample:
            return *entries_of(self.first_N, anchor_U), 1
        first_U = self.first_N[anchor_U]
        count_U = self.first_N[anchor_U + 1] - first_U
        size_U = count_U.clamp(max=self.sample)
        start_U = size_U.cumsum(0) - size_U
        more_U = count_U.double() / size_U.clamp(min=1)
        chance_U = self._draw(len(anchor_U)).double()
        # The i-th of n entries of a bag of c: (i + chance) c / n, rounded down.
        owner_P = torch.repeat_interleave(size_U)
        number_P = torch.arange(len(owner_P), device=owner_P.device) - start_U[owner_P]
        place_P = ((number_P + chance_U[owner_P]) * more_U[owner_P]).long()
        entry_P = first_U[owner_P] + place_P.minimum(count_U[owner_P] - 1)
        return entry_P, start_U, more_U[:, None].to(self.kernel_DW)

    def _left_out(self, anchor_B: Tensor, neighbour_B: Tensor) -> Tensor:
        """Per row the entry of its neighbour in its anchor's bag or, if there is none, a random
        one; -1 for an empty bag."""
        first_B = self.first_N[anchor_B]
        count_B = self.first_N[anchor_B + 1] - first_B
        key_B = self._key(anchor_B, neighbour_B)
        found_B = torch.searchsorted(self.key_P, key_B)
        is_in_B = F.pad(self.key_P, (0, 1), value=-1)[found_B] == key_B
        chance_B = (self._draw(len(anchor_B)) * count_B).long().minimum(count_B - 1)  # may round up
        entry_B = torch.where(is_in_B, found_B, first_B + chance_B)
        return torch.where(count_B > 0, entry_B, -1)

    def _draw(self, count: int) -> Tensor:
        device = self.first_N.device
        return torch.rand(count, generator=self.stream.generator(device), device=device)


class LinearItemBag(ItemBag):
    """y_jl = a_j + c_l b_j for neighbour j and level l (`bag_ratings: linear`).

    As in Asymmetric-SVD (Koren 2008, section 4), where c is the rating less its prediction. Here c
    is the level in standard deviations above the mean of all ratings, and 0 without a rating. All
    ratings of a neighbour train its a and b; a row per level sees only the ratings of that level.
    """

    base_JW: Tensor
    """a."""
    slope_JW: Tensor
    """b."""
    step_L: Tensor
    """c, set by `set_entries`; the last level has no rating."""

    def _start_table(self, levels: int, width: int) -> None:
        """`levels`: at least 3, the last one without a rating."""
        self.base_JW = nn.Parameter(torch.zeros(self.neighbours, width))
        self.slope_JW = nn.Parameter(torch.zeros(self.neighbours, width))
        self.register_buffer("step_L", torch.zeros(levels), False)

    def table(self) -> Tensor:
        # Without a temporary for the products: the table is made in every step.
        return torch.addcmul(self.base_JW, self.step_L[:, None, None], self.slope_JW).flatten(0, 1)

    def _sums(self, row_P: Tensor, start_U: Tensor) -> Tensor:
        # sum_j a_j + sum_j c_j b_j: two sums in place of a table with a row per level.
        if len(self.step_L) * self.neighbours <= MOST_ROWS:
            return super()._sums(row_P, start_U)
        step_P = self.step_L[(row_P // self.neighbours).long()]
        row_P = row_P % self.neighbours
        sum_UW = bag_sums(self.base_JW, row_P, start_U)
        return sum_UW + bag_sums(self.slope_JW, row_P, start_U, step_P)

    def set_entries(self, first_N: Tensor, row_P: Tensor) -> None:
        super().set_entries(first_N, row_P)
        unrated = len(self.step_L) - 1
        level_P = (row_P // self.neighbours)[row_P < unrated * self.neighbours].double()
        mean, deviation = 0.0, 0.0
        if len(level_P):
            mean, deviation = float(level_P.mean()), float(level_P.std(correction=0))
        self.step_L[:unrated] = (torch.arange(unrated) - mean) / (deviation or 1.0)

    @torch.no_grad()
    def init_from(self, table_RW: Tensor, kernel_DW: Tensor) -> None:
        """From the lowest and the highest level: the others lie on the line through them, and the
        last level, without a rating, gets c = 0."""
        low_JW, high_JW = (table_RW.unflatten(0, (-1, self.neighbours))[level] for level in (0, -2))
        self.slope_JW.copy_((high_JW - low_JW) / (self.step_L[-2] - self.step_L[0]))
        self.base_JW.copy_(low_JW - self.step_L[0] * self.slope_JW)
        self.kernel_DW.copy_(kernel_DW)
