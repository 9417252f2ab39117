"""Plan of the (example, expert) pairs to evaluate: their order and their blocks.

Axes: B batch, T tasks, E experts; P evaluated pairs in the order of their expert, R of them real
(the others pad), N entries: one per (example, task, chosen expert). Two tasks that choose the same
expert for an example share one pair, so N >= R. S = B T slots, one per mixture.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

CPU_BLOCK, GPU_BLOCK = 32, 2048
"""Cost of one more batched matmul, in pairs computed in the same time.

For experts of 256 x 256; smaller ones compute more. On a CPU by trial
(research/speed_history.md); on a GPU estimated from the time of a launch, not measured.
"""
WORTH = 1.2
"""How many times as much one block must cost to be cut: to be cut at all costs about a tenth."""


class Block(NamedTuple):
    """Neighbouring experts with the same number of pairs each: one batched matmul computes them."""

    experts: slice
    pairs: slice
    capacity: int
    """Pairs of each expert, with padding."""


class PairPlan(NamedTuple):
    """The pairs to evaluate, in order, and the entries that use them.

    Padding pairs evaluate row 0, and nothing reads them.
    """

    row_P: Tensor
    """Example of each pair."""
    blocks: list[Block]
    """They cover all experts and all pairs, in order."""
    flat_N: Tensor
    """Position of each entry in the flattened (B, T, E), increasing."""
    pair_N: Tensor
    slot_N: Tensor
    """Slot b * T + t collects the mixture of task t for example b."""
    order_N: Tensor
    """The entries in the order of their pairs."""
    real_R: Tensor
    """The pairs that are no padding, increasing."""
    size_E: Tensor
    """How many of them each expert has."""


def plan_pairs(selected_BTE: Tensor) -> PairPlan:
    """Order the chosen pairs by expert and remember where each task finds its own.

    Only the search for the entries takes time in proportion to rows times experts.
    """
    num_rows, num_tasks, num_experts = selected_BTE.shape
    flat_N = positions(selected_BTE)
    slot_N = flat_N.div(num_experts, rounding_mode="floor")
    expert_N, row_N = flat_N - slot_N * num_experts, slot_N.div(num_tasks, rounding_mode="floor")
    key_N, order_N = (expert_N * num_rows + row_N).sort(stable=True)  # equal: tasks share a pair
    key_R, pair_N = torch.unique_consecutive(key_N, return_inverse=True)
    expert_R = key_R.div(num_rows, rounding_mode="floor")
    size_E = torch.bincount(expert_R, minlength=num_experts)
    sizes_E = size_E.tolist()
    blocks = plan_blocks(sizes_E, CPU_BLOCK if flat_N.device.type == "cpu" else GPU_BLOCK)
    num_pairs, row_P = blocks[-1].pairs.stop, key_R - expert_R * num_rows
    real_R = torch.arange(len(key_R), device=key_R.device)
    if num_pairs > len(key_R):
        real_R += torch.tensor(_padding_before(blocks, sizes_E), device=key_R.device)[expert_R]
        row_P = row_P.new_zeros(num_pairs).index_copy_(0, real_R, row_P)
        pair_N = real_R[pair_N]
    return PairPlan(
        row_P=row_P,
        blocks=blocks,
        flat_N=flat_N,
        pair_N=torch.empty_like(pair_N).index_copy_(0, order_N, pair_N),
        slot_N=slot_N,
        order_N=order_N,
        real_R=real_R,
        size_E=size_E,
    )


def plan_blocks(sizes_E: Sequence[int], per_block: int) -> list[Block]:
    """One block, or for very uneven loads the cheapest cut into halves, quarters and so on.

    A block of n experts, the busiest with m pairs, costs n m + `per_block`: few blocks compute more
    padding, many blocks need more calls.
    """
    whole, (cost, spans) = [(0, len(sizes_E))], _cheapest(sizes_E, 0, len(sizes_E), per_block)
    is_worth_it = len(sizes_E) * max(sizes_E) + per_block > WORTH * cost
    blocks, start = [], 0
    for first, last in spans if is_worth_it else whole:
        capacity = max(sizes_E[first:last])
        stop = start + (last - first) * capacity
        blocks.append(Block(slice(first, last), slice(start, stop), capacity))
        start = stop
    return blocks


def _cheapest(
    sizes_E: Sequence[int], first: int, last: int, per_block: int
) -> tuple[int, list[tuple[int, int]]]:
    """Cost of the best blocks of the experts first .. last - 1, and where they begin and end."""
    part = sizes_E[first:last]
    cost, whole = len(part) * max(part) + per_block, [(first, last)]
    if len(part) == 1 or cost <= sum(part) + 2 * per_block:  # no cut can cost less than that
        return cost, whole
    middle = (first + last) // 2
    left, ours = _cheapest(sizes_E, first, middle, per_block)
    right, theirs = _cheapest(sizes_E, middle, last, per_block)
    return (cost, whole) if cost <= left + right else (left + right, ours + theirs)


def _padding_before(blocks: Sequence[Block], sizes_E: Sequence[int]) -> list[int]:
    """For each expert, the pairs that pad those before it."""
    spare = [block.capacity - size for block in blocks for size in sizes_E[block.experts]]
    return list(itertools.accumulate(spare[:-1], initial=0))


def positions(mask: Tensor) -> Tensor:
    """Positions of True in the flattened mask."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))  # a third of the time of `nonzero`
    return mask.flatten().nonzero().squeeze(-1)


def starts(group_N: Tensor, count: int) -> Tensor:
    """Where each of `count` groups starts among entries sorted by their group."""
    size = torch.bincount(group_N, minlength=count)
    return size.cumsum(0) - size
