"""An embedding table whose rows are divided among the processes of a run.

Of N rows and P processes, process r owns rows r c .. (r + 1) c with c = ceil(N / P): the last ones
may own fewer, or none. A lookup asks the owners for the distinct rows of a batch and gets them
back; the backward pass sends the gradients of these rows the same way. Every process must look up
as often as the others and in the same order, with an empty batch where it has none.

Axes: B ids of this process' batch, U distinct ones among them, V rows that all processes ask this
one for, D width, P processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

DRAWN_AT_ONCE = 2**20
"""Numbers; a multiple of 16, which is how many torch draws together from a normal distribution."""


def owned(rows: int, rank: int, world: int) -> slice:
    """The rows of process `rank`: those of torch's Shard(0)."""
    part = -(-rows // world)
    return slice(min(rank * part, rows), min((rank + 1) * part, rows))


class ShardedEmbedding(nn.Embedding):
    """`weight` (own rows, D) holds `rows` of the `num_embeddings` that all processes look up.

    It starts with the values that one process would draw, and leaves the generator as it would.
    Gradients are divided by P, like those that DDP averages.
    """

    def __init__(self, num_embeddings: int, dim: int, rank: int, world: int) -> None:
        self.rows = owned(num_embeddings, rank, world)
        drawn = _drawn(num_embeddings, dim, self.rows)
        super().__init__(len(drawn), dim, _weight=drawn)
        self.num_embeddings = num_embeddings
        self.world = world
        self.before_read: Callable[[Tensor], None] | None = None
        """Told which own rows (V,), counted from 0, a training step is about to read."""

    def forward(self, index_B: Tensor) -> Tensor:
        """(B,) ids in 0..num_embeddings - 1 -> (B, D). All processes wait for each other."""
        asked_U, place_B = index_B.long().unique(return_inverse=True)  # sorted, and so by owner
        part = -(-self.num_embeddings // self.world)
        sent, received = _split_sizes(torch.bincount(asked_U // part, minlength=self.world))
        row_V = exchange(asked_U, sent, received) - self.rows.start
        if self.before_read is not None and self.training:
            self.before_read(row_V)
        rows_VD = F.embedding(row_V, self.weight, sparse=self.sparse)
        if rows_VD.requires_grad:
            rows_VD.register_hook(lambda gradient_VD: gradient_VD / self.world)
        rows_UD: Tensor = _Exchange.apply(rows_VD, received, sent)
        return F.embedding(place_B, rows_UD)


@torch.no_grad()
def join_lookup(tables: Iterable[nn.Embedding]) -> None:
    """Take part, without rows of one's own, in a lookup that other processes do."""
    for table in tables:
        if isinstance(table, ShardedEmbedding):
            table(torch.empty(0, dtype=torch.int64, device=table.weight.device))


def _split_sizes(sent_P: Tensor) -> tuple[list[int], list[int]]:
    """How many values this process sends to each one, and how many it receives from each."""
    received_P = torch.empty_like(sent_P)
    dist.all_to_all_single(received_P, sent_P)
    sent, received = torch.stack([sent_P, received_P]).tolist()
    return sent, received


def exchange(values: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """One all-to-all: `values` in the order of their receivers -> in the order of their senders."""
    result = values.new_empty(sum(received), *values.shape[1:])
    dist.all_to_all_single(result, values.contiguous(), received, sent)
    return result


class _Exchange(torch.autograd.Function):
    """`exchange`, and its transpose backwards. (torch.distributed.nn's own is deprecated.)"""

    @staticmethod
    def forward(ctx: Any, values: Tensor, sent: list[int], received: list[int]) -> Tensor:
        ctx.back = received, sent
        return exchange(values, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return exchange(gradients[0], *ctx.back), None, None


def _drawn(num_embeddings: int, dim: int, rows: slice) -> Tensor:
    """Rows `rows` of what `model.MultiTaskMoE` draws for a table, without holding the others."""
    count = num_embeddings * dim
    for piece in _pieces(count):  # nn.Embedding draws N(0, 1) first
        torch.empty(piece[1] - piece[0]).normal_()
    own = torch.empty((rows.stop - rows.start) * dim)
    first, last = rows.start * dim, rows.stop * dim
    for start, stop in _pieces(count):
        drawn = torch.empty(stop - start).uniform_(-0.05, 0.05)
        low, high = max(start, first), min(stop, last)
        if low < high:
            own[low - first : high - first] = drawn[low - start : high - start]
    return own.view(-1, dim)


def _pieces(count: int) -> list[tuple[int, int]]:
    """Bounds of pieces of `DRAWN_AT_ONCE` and a last one of at least 16, where there are any."""
    starts = [*range(0, max(count - 15, 1), DRAWN_AT_ONCE)]
    return list(zip(starts, [*starts[1:], count], strict=True))


def sharded_tables(rank: int, world: int) -> Callable[[int, int], nn.Embedding]:
    """What makes the tables of process `rank`: (rows, width) -> table."""
    return partial(ShardedEmbedding, rank=rank, world=world)


def unfilled(num_embeddings: int, dim: int) -> nn.Embedding:
    """A table without memory, for `load_state_dict(..., assign=True)`."""
    return nn.Embedding(num_embeddings, dim, device="meta")
