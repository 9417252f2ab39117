"""How the chosen (example, expert) pairs are computed. Every way equals `moe.naive_moe`.

Axes: B batch, T tasks, E experts, D input width, H expert width, P evaluated pairs in the order of
their expert, R of them real (the others pad), N entries: one per (example, task, chosen expert).
Two tasks that choose the same expert for an example share one pair, so N >= R.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recsys_moe.dropout import Dropout


def max_padding(pairs_per_expert: float) -> float:
    """Evaluated pairs per real pair up to which one padded batched matmul is the faster way.

    From benchmarks/experts.py on two threads: with 121, 31 and 8 pairs per expert it runs 1.2, 1.7
    and 2.5 times as fast per evaluated pair as a matmul per expert, whose calls are then too small.
    """
    return min(1.1 + 16 / pairs_per_expert, 2.5)


def sparse_experts(
    x_BD: Tensor,
    weights_BTE: Tensor,
    selected_BTE: Tensor,
    kernel_EDH: Tensor,
    bias_EH: Tensor,
    dropout: Dropout,
) -> Tensor:
    """Evaluate the chosen pairs only, each once, and mix them per task. Returns (B, T, H).

    `selected_BTE`: bool; weights off the selection must be 0 and get no gradient.
    """
    plan = plan_pairs(selected_BTE)
    keep_PH = dropout.mask((len(plan.row_P), kernel_EDH.shape[-1]), x_BD)
    x_BD, kernel_EDH, bias_EH = _autocast(x_BD, kernel_EDH, bias_EH)
    # gather: its gradient is one scatter, that of indexing sorts.
    weights_N = weights_BTE.flatten().gather(0, plan.flat_N).to(x_BD.dtype) * dropout.scale
    slots = weights_BTE.shape[:2]
    mixed = _SparseMixture.apply(x_BD, weights_N, kernel_EDH, bias_EH, keep_PH, plan, slots.numel())
    return mixed.unflatten(0, slots)


def dense_experts(
    x_BD: Tensor, weights_BTE: Tensor, kernel_EDH: Tensor, bias_EH: Tensor, dropout: Dropout
) -> Tensor:
    """Evaluate every expert on every example in one batched matmul. Returns (B, T, H)."""
    x_EBD = x_BD.expand(len(kernel_EDH), -1, -1)
    hidden_EBH = torch.baddbmm(bias_EH[:, None], x_EBD, kernel_EDH).relu_()
    keep_EBH = dropout.mask(tuple(hidden_EBH.shape), x_BD)
    if keep_EBH is not None:
        hidden_EBH = hidden_EBH * keep_EBH.to(hidden_EBH.dtype)
        weights_BTE = weights_BTE * dropout.scale
    return torch.einsum("bte,ebh->bth", weights_BTE.to(hidden_EBH.dtype), hidden_EBH)


class Plan(NamedTuple):
    """Which pairs are evaluated, in which order, and who asked for them.

    With `capacity`, expert e owns the pairs e * capacity .. (e + 1) * capacity - 1; those beyond
    its share evaluate row 0 for nobody.
    """

    row_P: Tensor
    """Example of each pair."""
    sizes_E: list[int]
    """Pairs of each expert; empty with a capacity."""
    capacity: int | None
    flat_N: Tensor
    """Position of each entry in the flattened (B, T, E), increasing."""
    pair_N: Tensor
    slot_N: Tensor
    """Slot b * T + t collects the mixture of task t for example b."""
    order_N: Tensor
    """The entries in the order of their pairs."""
    real_R: Tensor
    """The pairs that some entry asked for, increasing: all without a capacity."""


def plan_pairs(selected_BTE: Tensor) -> Plan:
    """Order the chosen pairs by expert and remember where each task finds its own.

    Everything but the search for the entries takes time by their number, not by that of experts.
    """
    num_rows, num_tasks, num_experts = selected_BTE.shape
    flat_N = _where(selected_BTE)
    slot_N = flat_N.div(num_experts, rounding_mode="floor")
    expert_N, row_N = flat_N - slot_N * num_experts, slot_N.div(num_tasks, rounding_mode="floor")
    key_N, order_N = (expert_N * num_rows + row_N).sort(stable=True)  # equal: tasks share a pair
    key_R, pair_N = torch.unique_consecutive(key_N, return_inverse=True)
    expert_R = key_R.div(num_rows, rounding_mode="floor")
    row_P, sizes_E = key_R - expert_R * num_rows, torch.bincount(expert_R, minlength=num_experts)
    capacity, real_R = _capacity(len(row_P), sizes_E), torch.arange(len(row_P), device=row_P.device)
    if capacity is not None:
        starts_E = torch.arange(num_experts, device=row_P.device) * capacity
        real_R = real_R + (starts_E - sizes_E.cumsum(0) + sizes_E)[expert_R]
        pair_N = real_R[pair_N]
        row_P = row_P.new_zeros(num_experts * capacity).index_copy_(0, real_R, row_P)
    return Plan(
        row_P=row_P,
        sizes_E=[] if capacity is not None else sizes_E.tolist(),
        capacity=capacity,
        flat_N=flat_N,
        pair_N=torch.empty_like(pair_N).index_copy_(0, order_N, pair_N),
        slot_N=slot_N,
        order_N=order_N,
        real_R=real_R,
    )


def _where(mask: Tensor) -> Tensor:
    """Positions of True in the flattened mask."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))  # a third of the time of `nonzero`
    return mask.flatten().nonzero().squeeze(-1)


def _starts(group_N: Tensor, count: int) -> Tensor:
    """Where each of `count` groups starts among entries sorted by their group."""
    size = torch.bincount(group_N, minlength=count)
    return size.cumsum(0) - size


def _capacity(num_pairs: int, sizes_E: Tensor) -> int | None:
    """Pairs per expert after padding, or None where a matmul per expert is the faster way."""
    if num_pairs == 0:
        return None
    largest, num_experts = int(sizes_E.max()), len(sizes_E)
    padding = largest * num_experts / num_pairs
    return largest if padding <= max_padding(num_pairs / num_experts) else None


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
        plan: Plan,
        num_slots: int,
    ) -> Tensor:
        ctx.num_rows = len(x_BD)
        x_PD = x_BD.index_select(0, plan.row_P)
        hidden_PH = _linear(x_PD, kernel_EDH, bias_EH, plan).relu_()
        if keep_PH is not None:
            hidden_PH.mul_(keep_PH)
        ctx.save_for_backward(x_PD, weights_N, kernel_EDH, hidden_PH)
        ctx.plan, ctx.starts_S = plan, _starts(plan.slot_N, num_slots)
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
        grad_x_PD, grad_kernel_EDH, grad_bias_EH = _linear_backward(grad_PH, x_PD, kernel_EDH, plan)
        grad_x_BD = _to_rows(grad_x_PD, plan, ctx.num_rows)
        return grad_x_BD, grad_weights_N, grad_kernel_EDH, grad_bias_EH, None, None, None


def _to_pairs(grad_SH: Tensor, weights_N: Tensor, plan: Plan) -> Tensor:
    """Gradient of the pairs' outputs: each sums over the entries that used it."""
    starts_P = _starts(plan.pair_N, len(plan.row_P))
    return _bag(grad_SH, plan.slot_N[plan.order_N], starts_P, weights_N[plan.order_N])


def _to_rows(grad_PD: Tensor, plan: Plan, num_rows: int) -> Tensor:
    """Gradient of x: that of each row sums over the pairs it is in."""
    row_R, order_R = plan.row_P[plan.real_R].sort(stable=True)
    return _bag(grad_PD, plan.real_R[order_R], _starts(row_R, num_rows))


def _bag(table: Tensor, index_N: Tensor, starts: Tensor, weights_N: Tensor | None = None) -> Tensor:
    """Weighted sums of rows of `table`, one per start; a bag without entries is 0."""
    return torch.embedding_bag(table, index_N, starts, False, 0, False, weights_N)[0]


def _linear(x_PD: Tensor, kernel_EDH: Tensor, bias_EH: Tensor, plan: Plan) -> Tensor:
    """x W_e + b_e for each pair."""
    if plan.capacity is not None:
        x_ECD = x_PD.unflatten(0, (-1, plan.capacity))
        return torch.baddbmm(bias_EH[:, None], x_ECD, kernel_EDH).flatten(0, 1)
    out_PH = x_PD.new_empty(len(x_PD), kernel_EDH.shape[-1])
    for expert, part in _segments(plan.sizes_E):
        torch.addmm(bias_EH[expert], x_PD[part], kernel_EDH[expert], out=out_PH[part])
    return out_PH


def _linear_backward(
    grad_PH: Tensor, x_PD: Tensor, kernel_EDH: Tensor, plan: Plan
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `_linear` for x, kernel and bias."""
    if plan.capacity is not None:
        x_ECD, grad_ECH = (v.unflatten(0, (-1, plan.capacity)) for v in (x_PD, grad_PH))
        grad_x_PD = torch.bmm(grad_ECH, kernel_EDH.transpose(1, 2)).flatten(0, 1)
        return grad_x_PD, torch.bmm(x_ECD.transpose(1, 2), grad_ECH), grad_ECH.sum(1)
    grad_x_PD, grad_kernel_EDH = torch.empty_like(x_PD), torch.empty_like(kernel_EDH)
    grad_bias_EH = kernel_EDH.new_zeros(kernel_EDH.shape[0], kernel_EDH.shape[2])
    for expert, part in _segments(plan.sizes_E):
        torch.mm(grad_PH[part], kernel_EDH[expert].t(), out=grad_x_PD[part])
        torch.mm(x_PD[part].t(), grad_PH[part], out=grad_kernel_EDH[expert])
        torch.sum(grad_PH[part], 0, out=grad_bias_EH[expert])
    for expert, size in enumerate(plan.sizes_E):
        if size == 0:
            grad_kernel_EDH[expert].zero_()
    return grad_x_PD, grad_kernel_EDH, grad_bias_EH


def _segments(sizes_E: list[int]) -> list[tuple[int, slice]]:
    """(expert, slice of its pairs) for every expert that was visited."""
    segments, start = [], 0
    for expert, size in enumerate(sizes_E):
        if size:
            segments.append((expert, slice(start, start + size)))
        start += size
    return segments


def _autocast(*tensors: Tensor) -> list[Tensor]:
    """Cast as autocast would: custom autograd functions do not see it."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    if tensors[0].dtype == torch.float64:  # as autocast does, too
        return list(tensors)
    return [tensor.to(torch.get_autocast_dtype(kind)) for tensor in tensors]
