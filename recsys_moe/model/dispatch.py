"""Which (example, expert) pairs are computed, in which order, and how.

Every way equals `moe.naive_moe`. Axes: B batch, T tasks, E experts, D input width, H expert width,
X either; P evaluated pairs in the order of their expert, R of them real (the others pad), N
entries: one per (example, task, chosen expert). Two tasks that choose the same expert for an
example share one pair, so N >= R. S = B T slots, one per mixture.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recsys_moe.model.experts import Experts

CPU_BLOCK, GPU_BLOCK = 32, 2048
"""What one more batched matmul costs, in pairs that could be computed meanwhile.

For experts of 256 x 256; smaller ones compute more. On a CPU by trial, see benchmarks/HISTORY.md
for what comes of it; on a GPU estimated from the time of a launch, not measured.
"""
WORTH = 1.2
"""How many times as much one block must cost to be cut: to be cut at all costs about a tenth."""


def sparse_experts(
    x_BD: Tensor,
    weights_BTE: Tensor,
    selected_BTE: Tensor,
    experts: Experts,
    *,
    tell: Callable[[Tensor, Tensor, Tensor], None] | None = None,
) -> Tensor:
    """Evaluate the chosen pairs only, each once, and mix them per task. Returns (B, T, H).

    `selected_BTE`: bool; weights off the selection must be 0 and get no gradient. `tell`: given the
    pairs' outputs (P, H) before the scale of dropout, and `real_R` and `size_E` of the plan.
    """
    plan, dropout = plan_pairs(selected_BTE), experts.dropout
    keep_PH = dropout.mask((len(plan.row_P), experts.bias_EH.shape[-1]), x_BD)
    x_BD, kernel_EDH, bias_EH = _autocast(x_BD, experts.kernel_EDH, experts.bias_EH)
    # gather: its gradient is one scatter, that of indexing sorts.
    weights_N = weights_BTE.flatten().gather(0, plan.flat_N).to(x_BD.dtype) * dropout.scale
    slots = weights_BTE.shape[:2]
    more = keep_PH, plan, slots.numel(), tell
    return _SparseMixture.apply(x_BD, weights_N, kernel_EDH, bias_EH, *more).unflatten(0, slots)


def dense_experts(
    x_BD: Tensor,
    weights_BTE: Tensor,
    experts: Experts,
    *,
    tell: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Evaluate every expert on every example in one batched matmul. Returns (B, T, H).

    `tell`: given all outputs (E, B, H) before the scale of dropout.
    """
    dropout, x_EBD = experts.dropout, x_BD.expand(len(experts.bias_EH), -1, -1)
    hidden_EBH = torch.baddbmm(experts.bias_EH[:, None], x_EBD, experts.kernel_EDH).relu_()
    keep_EBH = dropout.mask(tuple(hidden_EBH.shape), x_BD)
    if keep_EBH is not None:
        hidden_EBH = hidden_EBH * keep_EBH.to(hidden_EBH.dtype)
        weights_BTE = weights_BTE * dropout.scale
    if tell is not None:
        tell(hidden_EBH.detach())
    return torch.einsum("bte,ebh->bth", weights_BTE.to(hidden_EBH.dtype), hidden_EBH)


class _SparseMixture(torch.autograd.Function):
    """sum of weight * keep * relu(x W_e + b_e) over the entries of each slot, hand-differentiated.

    `embedding_bag` is the sparse-dense matmul: one pass over the pairs, without a (P, T, H)
    intermediate. Gradients are written into one buffer per parameter: indexing `kernel[e]` under
    autograd would make a full (E, D, H) gradient for every expert instead.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_BD: Tensor,
        weights_N: Tensor,
        kernel_EDH: Tensor,
        bias_EH: Tensor,
        keep_PH: Tensor | None,
        plan: PairPlan,
        num_slots: int,
        tell: Callable[[Tensor, Tensor, Tensor], None] | None,
    ) -> Tensor:
        ctx.num_rows = len(x_BD)
        x_PD = x_BD.index_select(0, plan.row_P)
        hidden_PH = _linear(x_PD, kernel_EDH, bias_EH, plan.blocks).relu_()
        if keep_PH is not None:
            hidden_PH.mul_(keep_PH)
        if tell is not None:
            tell(hidden_PH, plan.real_R, plan.size_E)
        ctx.save_for_backward(x_PD, weights_N, kernel_EDH, hidden_PH)
        ctx.plan, ctx.starts_S = plan, starts(plan.slot_N, num_slots)
        return _bag(hidden_PH, plan.pair_N, ctx.starts_S, weights_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_SH: Tensor) -> tuple[Tensor | None, ...]:
        x_PD, weights_N, kernel_EDH, hidden_PH = ctx.saved_tensors
        plan, grad_SH = ctx.plan, grad_SH.contiguous()
        # A dot product per entry, without gathering either side.
        grad_weights_N = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            grad_SH, hidden_PH, plan.pair_N, ctx.starts_S, plan.slot_N, 0
        )
        grad_PH = _to_pairs(grad_SH, weights_N, plan)
        # hidden is 0 exactly where the ReLU or the dropout stopped the signal.
        grad_PH = torch.ops.aten.threshold_backward(grad_PH, hidden_PH, 0)
        grad_x_PD, grad_kernel_EDH, grad_bias_EH = _linear_backward(
            grad_PH, x_PD, kernel_EDH, plan.blocks
        )
        grad_x_BD = _to_rows(grad_x_PD, plan, ctx.num_rows)
        return grad_x_BD, grad_weights_N, grad_kernel_EDH, grad_bias_EH, None, None, None, None


def _to_pairs(grad_SH: Tensor, weights_N: Tensor, plan: PairPlan) -> Tensor:
    """Gradient of the pairs' outputs: each sums over the entries that used it."""
    starts_P = starts(plan.pair_N, len(plan.row_P))
    return _bag(grad_SH, plan.slot_N[plan.order_N], starts_P, weights_N[plan.order_N])


def _to_rows(grad_PD: Tensor, plan: PairPlan, num_rows: int) -> Tensor:
    """Gradient of x: that of each row sums over the pairs it is in."""
    row_R, order_R = plan.row_P[plan.real_R].sort(stable=True)
    return _bag(grad_PD, plan.real_R[order_R], starts(row_R, num_rows))


def _bag(table: Tensor, index_N: Tensor, starts: Tensor, weights_N: Tensor | None = None) -> Tensor:
    """Weighted sums of rows of `table`, one per start; a bag without entries is 0."""
    return torch.embedding_bag(table, index_N, starts, False, 0, False, weights_N)[0]


def _linear(x_PD: Tensor, kernel_EDH: Tensor, bias_EH: Tensor, blocks: list[Block]) -> Tensor:
    """x W_e + b_e for each pair."""
    out_PH = x_PD.new_empty(len(x_PD), kernel_EDH.shape[-1])
    for block in blocks:
        bias, x, kernel = bias_EH[block.experts, None], _of(x_PD, block), kernel_EDH[block.experts]
        torch.baddbmm(bias, x, kernel, out=_of(out_PH, block))
    return out_PH


def _linear_backward(
    grad_PH: Tensor, x_PD: Tensor, kernel_EDH: Tensor, blocks: list[Block]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `_linear` for x, kernel and bias; those of experts without pairs are 0."""
    grad_x_PD, grad_kernel_EDH = torch.empty_like(x_PD), torch.empty_like(kernel_EDH)
    grad_bias_EH = kernel_EDH.new_empty(kernel_EDH.shape[0], kernel_EDH.shape[2])
    for block in blocks:
        experts, x, grad = block.experts, _of(x_PD, block), _of(grad_PH, block)
        torch.bmm(grad, kernel_EDH[experts].transpose(1, 2), out=_of(grad_x_PD, block))
        torch.bmm(x.transpose(1, 2), grad, out=grad_kernel_EDH[experts])
        torch.sum(grad, 1, out=grad_bias_EH[experts])
    return grad_x_PD, grad_kernel_EDH, grad_bias_EH


def _of(values_PX: Tensor, block: Block) -> Tensor:
    """The rows of a block by expert: a view (experts, capacity, X)."""
    count = block.experts.stop - block.experts.start
    return values_PX[block.pairs].unflatten(0, (count, block.capacity))


def _autocast(*tensors: Tensor) -> list[Tensor]:
    """Cast as autocast would: custom autograd functions do not see it."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    if tensors[0].dtype == torch.float64:  # as autocast does, too
        return list(tensors)
    return [tensor.to(torch.get_autocast_dtype(kind)) for tensor in tensors]


class Block(NamedTuple):
    """Neighbouring experts with the same number of pairs each: one batched matmul computes them."""

    experts: slice
    pairs: slice
    capacity: int
    """Pairs of each expert, those that pad included."""


class PairPlan(NamedTuple):
    """Which pairs are evaluated, in which order, and who asked for them.

    Pairs beyond their expert's share of a block evaluate row 0 for nobody.
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
    """The pairs that some entry asked for, increasing."""
    size_E: Tensor
    """How many of them each expert has."""


def plan_pairs(selected_BTE: Tensor) -> PairPlan:
    """Order the chosen pairs by expert and remember where each task finds its own.

    Nothing takes time by the number of experts times that of rows but the search for the entries.
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
    """One block, or where loads differ much the cheapest cut into halves, quarters and so on.

    A block of n experts, the busiest with m pairs, costs n m + `per_block`: few blocks compute much
    in vain for the less busy, many are many calls.
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
