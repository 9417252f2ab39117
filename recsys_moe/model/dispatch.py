"""Evaluate the experts: on the selected pairs only, or all of them.

Both give what `moe.naive_moe` defines. Axes as in `pair_plan`, and D input width, H expert width, X
either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recsys_moe.model.experts import Experts
from recsys_moe.model.pair_plan import Block, PairPlan, plan_pairs, starts
from recsys_moe.model.static_dispatch import autocast


def sparse_experts(
    x_BD: Tensor,
    weights_BTE: Tensor,
    selected_BTE: Tensor,
    experts: Experts,
    *,
    on_outputs: Callable[[Tensor, Tensor, Tensor], None] | None = None,
) -> Tensor:
    """Evaluate the chosen pairs only, each once, and mix them per task. Returns (B, T, H).

    `selected_BTE`: bool; weights off the selection must be 0 and get no gradient. `on_outputs`:
    called with the pairs' outputs (P, H) before the scale of dropout, and `real_R` and `size_E` of
    the plan.
    """
    plan, dropout = plan_pairs(selected_BTE), experts.dropout
    keep_PH = dropout.mask((len(plan.row_P), experts.bias_EH.shape[-1]), x_BD)
    x_BD, kernel_EDH, bias_EH = autocast(x_BD, experts.kernel_EDH, experts.bias_EH)
    # gather: its gradient is one scatter, that of indexing sorts.
    weights_N = weights_BTE.flatten().gather(0, plan.flat_N).to(x_BD.dtype) * dropout.scale
    slots = weights_BTE.shape[:2]
    more = keep_PH, plan, slots.numel(), on_outputs
    return _SparseMixture.apply(x_BD, weights_N, kernel_EDH, bias_EH, *more).unflatten(0, slots)


def dense_experts(
    x_BD: Tensor,
    weights_BTE: Tensor,
    experts: Experts,
    *,
    on_outputs: Callable[[Tensor], None] | None = None,
) -> Tensor:
    """Evaluate every expert on every example in one batched matmul. Returns (B, T, H).

    `on_outputs`: called with all outputs (E, B, H) before the scale of dropout.
    """
    dropout, x_EBD = experts.dropout, x_BD.expand(len(experts.bias_EH), -1, -1)
    hidden_EBH = torch.baddbmm(experts.bias_EH[:, None], x_EBD, experts.kernel_EDH).relu_()
    keep_EBH = dropout.mask(tuple(hidden_EBH.shape), x_BD)
    if keep_EBH is not None:
        hidden_EBH = hidden_EBH * keep_EBH.to(hidden_EBH.dtype)
        weights_BTE = weights_BTE * dropout.scale
    if on_outputs is not None:
        on_outputs(hidden_EBH.detach())
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
        on_outputs: Callable[[Tensor, Tensor, Tensor], None] | None,
    ) -> Tensor:
        ctx.num_rows = len(x_BD)
        x_PD = x_BD.index_select(0, plan.row_P)
        hidden_PH = _linear(x_PD, kernel_EDH, bias_EH, plan.blocks).relu_()
        if keep_PH is not None:
            hidden_PH.mul_(keep_PH)
        if on_outputs is not None:
            on_outputs(hidden_PH, plan.real_R, plan.size_E)
        ctx.save_for_backward(x_PD, weights_N, kernel_EDH, hidden_PH)
        ctx.plan, ctx.starts_S = plan, starts(plan.slot_N, num_slots)
        return _bag(hidden_PH, plan.pair_N, ctx.starts_S, weights_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_SH: Tensor) -> tuple[Tensor | None, ...]:
        x_PD, weights_N, kernel_EDH, hidden_PH = ctx.saved_tensors
        plan, grad_SH = ctx.plan, grad_SH.contiguous()
        grad_weights_N = _dots(grad_SH, hidden_PH, plan, ctx.starts_S)
        grad_PH = _to_pairs(grad_SH, weights_N, plan)
        # hidden is 0 exactly where the ReLU or the dropout stopped the signal.
        grad_PH = torch.ops.aten.threshold_backward(grad_PH, hidden_PH, 0)
        grad_x_PD, grad_kernel_EDH, grad_bias_EH = _linear_backward(
            grad_PH, x_PD, kernel_EDH, plan.blocks
        )
        grad_x_BD = _to_rows(grad_x_PD, plan, ctx.num_rows)
        return grad_x_BD, grad_weights_N, grad_kernel_EDH, grad_bias_EH, None, None, None, None


def _dots(grad_SH: Tensor, hidden_PH: Tensor, plan: PairPlan, starts_S: Tensor) -> Tensor:
    """Gradient of the weights: a dot product per entry, without gathering either side."""
    dtype = grad_SH.dtype
    if grad_SH.is_cuda and dtype == torch.bfloat16:  # which the kernel is not written for
        grad_SH, hidden_PH = grad_SH.float(), hidden_PH.float()
    bags = grad_SH, hidden_PH, plan.pair_N, starts_S, plan.slot_N, 0
    return torch.ops.aten._embedding_bag_per_sample_weights_backward(*bags).to(dtype)


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
