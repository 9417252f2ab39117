"""What makes the vector of a user or item beside its id: its features, and what it has watched.

Both are sums of rows of a table of their own, which is why known users and items can be finished
vectors (`Encoders.finished`). Tables start at 0, so that training begins as without them.

Axes: B batch, U distinct users of a batch, N entities and one more for the unseen id, P entries
(which row belongs to which entity, entity after entity), R rows of a table, W its width, D width of
the embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recsys_moe.routers.stream import RandomStream

FINISHED_AT_ONCE = 1024
"""Entities; histories are long."""


class Features(nn.Module):
    """Sum of the embeddings of an entity's features: x_i = sum_p weight_p table[row_p]."""

    first_N: Tensor
    row_P: Tensor
    weight_P: Tensor

    def __init__(self, rows: int, dim: int, entities: int) -> None:
        super().__init__()
        self.table_RD = nn.Parameter(torch.zeros(rows, dim))
        # Not saved: they follow from the data, which a run that goes on reads again.
        self.register_buffer("first_N", torch.zeros(entities + 2, dtype=torch.int64), False)
        self.register_buffer("row_P", torch.zeros(0, dtype=torch.int32), False)
        self.register_buffer("weight_P", torch.zeros(0), False)

    def fill(self, first_N: Tensor, row_P: Tensor, weight_P: Tensor) -> None:
        """Entity i has the entries first_N[i]..first_N[i + 1] of `row_P` (int32), `weight_P`."""
        self.first_N, self.row_P, self.weight_P = first_N, row_P, weight_P.to(self.table_RD)

    def forward(self, index_B: Tensor) -> Tensor:
        """(B,) -> (B, D)."""
        entry_P, start_B = _entries(self.first_N, index_B.long())
        bags = (self.row_P[entry_P], self.table_RD, start_B.int())
        return F.embedding_bag(*bags, mode="sum", per_sample_weights=self.weight_P[entry_P])


class History(nn.Module):
    """Pooled embeddings of what a user has watched or rated in training: SVD++'s (Koren 2008).

    x_u = K |N(u)|^-1/2 sum_{j in N(u)} y_j, a table row y_j per item, or per item and level of its
    rating. In training the model must not read the label of a row off its history: see
    docs/features.md.

    - The item of a row is left out of the pool of its user; where it is not in there, another one
      is, by chance. Else "one is missing" would say "watched".
    - A share `dropout` of every pool is left out, by chance, anew for each user and batch. Else
      the embedding of the user's id could learn the whole sum, and the difference would tell which
      item is missing.
    """

    first_N: Tensor
    row_P: Tensor
    key_P: Tensor

    def __init__(
        self, num_users: int, num_items: int, *, levels: int, dims: tuple[int, int], dropout: float
    ) -> None:
        """`levels`: table rows per item; `dims`: width of the pool and of the embeddings."""
        super().__init__()
        self.num_items, self.rate = num_items, dropout
        self.table_RW = nn.Parameter(torch.zeros(levels * num_items, dims[0]))
        # A fixed start: without random numbers, everything else draws what it draws without it.
        self.kernel_DW = nn.Parameter(torch.eye(dims[1], dims[0]))
        self.register_buffer("first_N", torch.zeros(num_users + 2, dtype=torch.int64), False)
        self.register_buffer("row_P", torch.zeros(0, dtype=torch.int32), False)
        self.register_buffer("key_P", torch.zeros(0, dtype=torch.int64), False)
        self.stream = RandomStream()

    def fill(self, first_N: Tensor, row_P: Tensor) -> None:
        """User u has the rows row_P[first_N[u]:first_N[u + 1]] (int32), level x items + item, at
        most one of an item, by ascending item."""
        user_P = torch.repeat_interleave(first_N.diff())
        self.key_P = self._key(user_P, row_P % self.num_items)
        self.first_N, self.row_P = first_N, row_P

    def _key(self, user_B: Tensor, item_B: Tensor) -> Tensor:
        return user_B.long() * (self.num_items + 1) + item_B

    def forward(self, user_B: Tensor, item_B: Tensor) -> Tensor:
        """(B,) of users and of the items they are asked about -> (B, D)."""
        user_U, place_B = user_B.long().unique(return_inverse=True)
        if self.training:
            return F.linear(self._without_item(user_U, place_B, item_B), self.kernel_DW)
        return self.of_users(user_U)[place_B]

    def of_users(self, user_U: Tensor) -> Tensor:
        """Of the whole histories. (U,) -> (U, D)"""
        entry_P, start_U = _entries(self.first_N, user_U)
        sum_UW = _sums(self.table_RW, self.row_P[entry_P], start_U)
        return F.linear(sum_UW * self._scale(user_U), self.kernel_DW)

    def _scale(self, user_U: Tensor) -> Tensor:
        count_U = self.first_N[user_U + 1] - self.first_N[user_U]
        return count_U.clamp(min=1).to(self.table_RW).rsqrt()[:, None]

    def _without_item(self, user_U: Tensor, place_B: Tensor, item_B: Tensor) -> Tensor:
        """Pools (B, W) of a random part of the histories, without the items of the rows."""
        entry_P, start_U = _entries(self.first_N, user_U)
        keep_P = self._draw(len(entry_P)) >= self.rate
        kept_K = keep_P.nonzero()[:, 0]
        left_B = self._left_out(user_U[place_B], item_B)
        # Where that is among the entries of this batch; in front of them for no history.
        here_B = (left_B + (start_U - self.first_N[user_U])[place_B]).where(left_B >= 0, -1)
        gone_B = F.pad(keep_P, (1, 0))[here_B + 1]
        row_P = self.row_P[torch.cat([entry_P[kept_K], left_B[gone_B]])]
        gone_start_B = len(kept_K) + gone_B.cumsum(0) - gone_B.long()
        start = torch.cat([torch.searchsorted(kept_K, start_U), gone_start_B])
        sum_UW, gone_BW = _sums(self.table_RW, row_P, start).split([len(user_U), len(place_B)])
        scale_U1 = self._scale(user_U) / (1 - self.rate)
        return (sum_UW[place_B] - gone_BW) * scale_U1[place_B]

    def _left_out(self, user_B: Tensor, item_B: Tensor) -> Tensor:
        """Per row the entry of its item in its user's history or, if there is none, one by chance;
        -1 where there is no history."""
        first_B = self.first_N[user_B]
        count_B = self.first_N[user_B + 1] - first_B
        key_B = self._key(user_B, item_B)
        found_B = torch.searchsorted(self.key_P, key_B)
        is_in_B = F.pad(self.key_P, (0, 1), value=-1)[found_B] == key_B
        chance_B = (self._draw(len(user_B)) * count_B).long().minimum(count_B - 1)  # may round up
        entry_B = torch.where(is_in_B, found_B, first_B + chance_B)
        return torch.where(count_B > 0, entry_B, -1)

    def _draw(self, count: int) -> Tensor:
        device = self.table_RW.device
        return torch.rand(count, generator=self.stream.generator(device), device=device)


class Encoders(nn.Module):
    """What is added to the embeddings of ids; None for what a model does without."""

    def __init__(
        self, users: Features | None, items: Features | None, history: History | None
    ) -> None:
        super().__init__()
        self.users, self.items, self.history = users, items, history

    def forward(self, user_B: Tensor, item_B: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """For users and for items, i or, with a hidden id, ~i; (B, D), or 0 for nothing."""
        user_B, item_B = (torch.where(i_B < 0, ~i_B, i_B) for i_B in (user_B, item_B))
        users, items, history = self.users, self.items, self.history
        user_BD = 0.0 if users is None else users(user_B)
        if history is not None:
            user_BD = user_BD + history(user_B, item_B)
        return user_BD, 0.0 if items is None else items(item_B)

    @torch.no_grad()
    def finished(self, users_ND: Tensor, items_ND: Tensor) -> tuple[Tensor, Tensor]:
        """The whole vectors of all users and items, given the embeddings of their ids."""
        users_ND, items_ND = users_ND.clone(), items_ND.clone()
        for index_U in _parts(users_ND):
            if self.users is not None:
                users_ND[index_U] += self.users(index_U)
            if self.history is not None:
                users_ND[index_U] += self.history.of_users(index_U)
        if self.items is not None:
            for index_U in _parts(items_ND):
                items_ND[index_U] += self.items(index_U)
        return users_ND, items_ND


def _parts(table_ND: Tensor) -> Iterator[Tensor]:
    yield from torch.arange(len(table_ND), device=table_ND.device).split(FINISHED_AT_ONCE)


def _entries(first_N: Tensor, index_U: Tensor) -> tuple[Tensor, Tensor]:
    """The entries (P,) of entities, one after the other, and where those of each start (U,)."""
    first_U = first_N[index_U]
    count_U = first_N[index_U + 1] - first_U
    start_U = count_U.cumsum(0) - count_U
    shift_P = torch.repeat_interleave(first_U - start_U, count_U)
    return shift_P + torch.arange(len(shift_P), device=shift_P.device), start_U


def _sums(table_RW: Tensor, row_P: Tensor, start_U: Tensor) -> Tensor:
    """Sums (U, W) of the rows from each start to the next."""
    result: Tensor = _Sums.apply(table_RW, row_P, start_U)
    return result


class _Sums(torch.autograd.Function):
    """F.embedding_bag(mode="sum"), whose own backward pass takes seven times as long (torch 2.13 on
    a CPU, bags of hundreds of rows). The gradient of a row is itself a sum: over its bags."""

    @staticmethod
    def forward(ctx: Any, table_RW: Tensor, row_P: Tensor, start_U: Tensor) -> Tensor:
        ctx.save_for_backward(row_P, start_U)
        ctx.rows = len(table_RW)
        return F.embedding_bag(row_P, table_RW, start_U.to(row_P), mode="sum")

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        row_P, start_U = ctx.saved_tensors
        size_U = start_U.diff(append=start_U.new_tensor([len(row_P)]))
        order_P = row_P.argsort(stable=True)  # the same sums in the same order on any device
        bag_P = torch.repeat_interleave(size_U)[order_P]
        size_R = torch.bincount(row_P, minlength=ctx.rows)
        start_R = size_R.cumsum(0) - size_R
        return F.embedding_bag(bag_P, gradients[0].contiguous(), start_R, mode="sum"), None, None
