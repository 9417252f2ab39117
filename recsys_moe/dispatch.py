"""How the chosen (example, expert) pairs are computed. Every way equals `moe.naive_moe`.

Axes: B batch, T tasks, E experts, D input width, H expert width, P evaluated pairs in the order of
their expert, N entries: one per (example, task, chosen expert). Two tasks that choose the same
expert for an example share one pair, so N >= P without padding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
    weights_N = weights_BTE.flatten()[plan.flat_N].to(x_BD.dtype) * dropout.scale
    mixed = _SparseMixture.apply(x_BD, weights_N, kernel_EDH, bias_EH, keep_PH, plan)
    return mixed.unflatten(0, weights_BTE.shape[:2])


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
    starts_S: Tensor
    """First entry of each slot: slot b * T + t collects the mixture of task t for example b."""
    slot_N: Tensor
    pair_of_row: Tensor
    """The pairs in the order of their rows..."""
    row_starts_B: Tensor
    """... and where the pairs of each row start."""


def plan_pairs(selected_BTE: Tensor) -> Plan:
    """Order the chosen pairs by expert and remember where each task finds its own."""
    num_rows, num_tasks, num_experts = selected_BTE.shape
    flat_N = selected_BTE.flatten().nonzero().squeeze(-1)
    slot_N = flat_N.div(num_experts, rounding_mode="floor")
    expert_N, row_N = flat_N - slot_N * num_experts, slot_N.div(num_tasks, rounding_mode="floor")
    chosen_EB = selected_BTE.any(1).t().contiguous()
    expert_P, row_P = chosen_EB.nonzero(as_tuple=True)
    sizes_E = chosen_EB.sum(1)
    pair_EB = (chosen_EB.flatten().cumsum(0) - 1).view_as(chosen_EB)
    capacity = _capacity(len(row_P), sizes_E)
    if capacity is not None:
        shift_E = torch.arange(num_experts, device=row_P.device) * capacity
        shift_E = shift_E - (sizes_E.cumsum(0) - sizes_E)
        pair_EB = pair_EB + shift_E[:, None]
        padded_P = row_P.new_zeros(num_experts * capacity)
        row_P = padded_P.index_copy_(0, pair_EB[expert_P, row_P], row_P)
    count_S, count_B = selected_BTE.sum(-1).flatten(), chosen_EB.sum(0)
    by_row, expert_by_row = chosen_EB.t().nonzero(as_tuple=True)
    return Plan(
        row_P=row_P,
        sizes_E=[] if capacity is not None else sizes_E.tolist(),
        capacity=capacity,
        flat_N=flat_N,
        pair_N=pair_EB[expert_N, row_N],
        starts_S=count_S.cumsum(0) - count_S,
        slot_N=slot_N,
        pair_of_row=pair_EB[expert_by_row, by_row],
        row_starts_B=count_B.cumsum(0) - count_B,
    )


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
    ) -> Tensor:
        x_PD = x_BD.index_select(0, plan.row_P)
        hidden_PH = _linear(x_PD, kernel_EDH, bias_EH, plan).relu_()
        if keep_PH is not None:
            hidden_PH.mul_(keep_PH)
        ctx.save_for_backward(x_PD, weights_N, kernel_EDH, hidden_PH)
        ctx.plan = plan
        return _bag(hidden_PH, plan.pair_N, plan.starts_S, weights_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_SH: Tensor) -> tuple[Tensor | None, ...]:
        x_PD, weights_N, kernel_EDH, hidden_PH = ctx.saved_tensors
        plan, grad_SH = ctx.plan, grad_SH.contiguous()
        # A dot product per entry, without gathering either side.
        grad_weights_N = torch.ops.aten._embedding_bag_per_sample_weights_backward(
            grad_SH, hidden_PH, plan.pair_N, plan.starts_S, plan.slot_N, 0
        )
        grad_PH = _to_pairs(grad_SH, weights_N, plan)
        # hidden is 0 exactly where the ReLU or the dropout stopped the signal.
        grad_PH = torch.ops.aten.threshold_backward(grad_PH, hidden_PH, 0)
        grad_x_PD, grad_kernel_EDH, grad_bias_EH = _linear_backward(grad_PH, x_PD, kernel_EDH, plan)
        grad_x_BD = _bag(grad_x_PD, plan.pair_of_row, plan.row_starts_B)
        return grad_x_BD, grad_weights_N, grad_kernel_EDH, grad_bias_EH, None, None


def _to_pairs(grad_SH: Tensor, weights_N: Tensor, plan: Plan) -> Tensor:
    """Gradient of the pairs' outputs: each sums over the entries that used it."""
    order_N = plan.pair_N.argsort()
    count_P = torch.bincount(plan.pair_N, minlength=len(plan.row_P))
    starts_P = count_P.cumsum(0) - count_P
    return _bag(grad_SH, plan.slot_N[order_N], starts_P, weights_N[order_N])


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
