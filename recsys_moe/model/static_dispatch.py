"""Evaluate the chosen pairs with shapes that do not depend on the choice: for GPUs.

Nothing here waits for the device, so a step can be recorded as a CUDA graph. Axes: B batch, T
tasks, E experts, D input width, H expert width, M most experts of an example, S = B T mixtures; P
pairs in the order of their expert, each expert padded to whole blocks, N blocks of P / N pairs. X
either width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from recsys_moe.model.experts import Experts

BLOCKS_PER_EXPERT = 8
"""As many if loads are even: each block gathers its expert's kernel, and pads half of itself."""
SMALLEST_BLOCK = 32
"""Pairs, below which a matrix product takes no less time."""


class StaticPlan(NamedTuple):
    """Where the pairs are. Padding evaluates some row, with weights of 0."""

    column_P: Tensor
    """Of each pair in the flattened (E, B + block): beyond B it is padding."""
    row_P: Tensor
    """Example of each pair."""
    expert_N: Tensor
    """Of each block, in order."""
    expert_BM: Tensor
    """Those of each example, in order; behind them some that it does not visit."""
    pair_BM: Tensor
    """Where they are; for the latter the last one, which is padding."""


def block_size(rows: int, most: int, num_experts: int) -> int:
    """Pairs of a block: a power of two."""
    even = rows * most // (num_experts * BLOCKS_PER_EXPERT)
    return max(SMALLEST_BLOCK, 1 << max(even.bit_length() - 1, 0))


def plan_static(selected_BTE: Tensor, most: int, block: int) -> StaticPlan:
    """Order the chosen pairs by expert. `most`: experts of any example."""
    rows, _, num_experts = selected_BTE.shape
    num_pairs = (-(-rows * most // block) + num_experts) * block  # the last one is padding
    place: dict[str, Any] = {"device": selected_BTE.device}
    used_BE = selected_BTE.any(1)
    # Minus the pairs that the last block of each expert lacks: python's remainder.
    spare_E = used_BE.sum(0).remainder(-block)
    pads_EX = spare_E[:, None] < -torch.arange(block, **place)
    used_EC = torch.cat([used_BE.t(), pads_EX], dim=1)
    end_C = used_EC.flatten().cumsum(0)
    column_P = torch.searchsorted(end_C, torch.arange(1, num_pairs + 1, **place))
    column_P.clamp_(max=used_EC.numel() - 1)  # behind the last expert's
    width = rows + block
    chosen_BE, expert_BE = used_BE.view(torch.uint8).sort(dim=-1, descending=True, stable=True)
    expert_BM = expert_BE[:, :most]
    column_BM = torch.add(torch.arange(rows, **place)[:, None], expert_BM, alpha=width)
    pair_BM = torch.where(chosen_BE[:, :most].bool(), end_C[column_BM] - 1, num_pairs - 1)
    return StaticPlan(
        column_P=column_P,
        row_P=column_P.remainder(width).clamp_(max=rows - 1),
        expert_N=column_P[::block].div(width, rounding_mode="floor"),
        expert_BM=expert_BM,
        pair_BM=pair_BM,
    )


def static_experts(
    x_BD: Tensor, weights_BTE: Tensor, selected_BTE: Tensor, experts: Experts, most: int
) -> Tensor:
    """As `sparse_experts`, for at least one row, of which none selects more than `most` experts in
    all. Returns (B, T, H)."""
    rows, _, num_experts = weights_BTE.shape
    most = min(most, num_experts)
    plan = plan_static(selected_BTE, most, block_size(rows, most, num_experts))
    dropout = experts.dropout
    keep_PH = dropout.mask((len(plan.row_P), experts.bias_EH.shape[-1]), x_BD)
    x_BD, kernel_EDH, bias_EH = autocast(x_BD, experts.kernel_EDH, experts.bias_EH)
    weights_BTE = weights_BTE.to(x_BD.dtype)
    if dropout.scale != 1:
        weights_BTE = weights_BTE * dropout.scale
    given = x_BD, weights_BTE, kernel_EDH, bias_EH
    return _StaticMixture.apply(*given, selected_BTE, keep_PH, plan)


class _StaticMixture(torch.autograd.Function):
    """sum of weight * keep * relu(x W_e + b_e) over the experts of each row, hand-differentiated.

    Sums go over the entries of bags, in order, and not by atomic additions: the same bits each
    time.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_BD: Tensor,
        weights_BTE: Tensor,
        kernel_EDH: Tensor,
        bias_EH: Tensor,
        selected_BTE: Tensor,
        keep_PH: Tensor | None,
        plan: StaticPlan,
    ) -> Tensor:
        blocks, (rows, tasks, _) = len(plan.expert_N), weights_BTE.shape
        x_PD = x_BD.index_select(0, plan.row_P)
        kernel_NDH = kernel_EDH.index_select(0, plan.expert_N)
        bias_NH = bias_EH.index_select(0, plan.expert_N)
        x_NXD = x_PD.unflatten(0, (blocks, -1))
        hidden_PH = torch.baddbmm(bias_NH[:, None], x_NXD, kernel_NDH).flatten(0, 1).relu_()
        if keep_PH is not None:
            hidden_PH.mul_(keep_PH)
        ctx.save_for_backward(x_PD, weights_BTE, kernel_NDH, hidden_PH, selected_BTE)
        ctx.plan, ctx.num_experts = plan, len(kernel_EDH)
        expert_BTM, pair_BTM = (of[:, None].expand(-1, tasks, -1) for of in (plan[3], plan[4]))
        weights_BTM = weights_BTE.gather(-1, expert_BTM)
        pair_SM, last = pair_BTM.flatten(0, 1), len(hidden_PH) - 1
        return _bags(hidden_PH, pair_SM, weights_BTM, last).unflatten(0, (rows, tasks))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTH: Tensor) -> tuple[Tensor | None, ...]:
        x_PD, weights_BTE, kernel_NDH, hidden_PH, selected_BTE = ctx.saved_tensors
        plan, grad_SH = ctx.plan, grad_BTH.flatten(0, 1).contiguous()
        grad_weights_BTE = _dots(grad_SH, hidden_PH, plan, selected_BTE)
        grad_PH = _to_pairs(grad_SH, weights_BTE, plan)
        # hidden is 0 exactly where the ReLU or the dropout stopped the signal.
        grad_PH = torch.ops.aten.threshold_backward(grad_PH, hidden_PH, 0)
        grad_NXH, x_NXD = (of.unflatten(0, (len(kernel_NDH), -1)) for of in (grad_PH, x_PD))
        grad_x_PD = torch.bmm(grad_NXH, kernel_NDH.transpose(1, 2)).flatten(0, 1)
        all_E = torch.arange(ctx.num_experts, device=x_PD.device)
        start_E = torch.searchsorted(plan.expert_N, all_E)
        grad_kernel_EDH = _of_experts(torch.bmm(x_NXD.transpose(1, 2), grad_NXH), start_E)
        grad_bias_EH = _of_experts(grad_NXH.sum(1), start_E)
        grad_x_BD = _bags(grad_x_PD, plan.pair_BM, skipped=len(grad_x_PD) - 1)
        return grad_x_BD, grad_weights_BTE, grad_kernel_EDH, grad_bias_EH, None, None, None


def _bags(
    table: Tensor, index_SX: Tensor, weights: Tensor | None = None, skipped: int | None = None
) -> Tensor:
    """Weighted sums of rows of `table`, one for each row of the index, without row `skipped`."""
    size = index_SX.shape[-1]
    starts = torch.arange(0, index_SX.numel(), size, device=table.device)
    weights = None if weights is None else weights.flatten().contiguous()
    index = index_SX.flatten().contiguous()
    return torch.embedding_bag(table, index, starts, False, 0, False, weights, False, skipped)[0]


def _dots(grad_SH: Tensor, hidden_PH: Tensor, plan: StaticPlan, selected_BTE: Tensor) -> Tensor:
    """Gradient of the weights: a dot product of each task's gradient with each pair of a row."""
    dtype, (rows, tasks, num_experts) = grad_SH.dtype, selected_BTE.shape
    if grad_SH.is_cuda and dtype == torch.bfloat16:  # which the kernel is not written for
        grad_SH, hidden_PH = grad_SH.float(), hidden_PH.float()
    most, last = plan.pair_BM.shape[1], len(hidden_PH) - 1
    pair_BTM, expert_BTM = (
        of[:, None].expand(-1, tasks, -1) for of in (plan.pair_BM, plan.expert_BM)
    )
    place_F = torch.arange(rows * tasks * most, device=grad_SH.device)
    bag_F, starts_S = place_F.div(most, rounding_mode="floor"), place_F[::most].contiguous()
    bags = grad_SH, hidden_PH, pair_BTM.flatten().contiguous(), starts_S, bag_F, 0, last
    dots_F = torch.ops.aten._embedding_bag_per_sample_weights_backward(*bags).to(dtype)
    dots_BTE = dots_F.new_zeros(rows, tasks, num_experts)
    return dots_BTE.scatter_(-1, expert_BTM, dots_F.view(rows, tasks, most)).mul_(selected_BTE)


def _to_pairs(grad_SH: Tensor, weights_BTE: Tensor, plan: StaticPlan) -> Tensor:
    """Gradient of the pairs' outputs: each sums over the tasks, of which some did not choose it."""
    tasks, block = weights_BTE.shape[1], len(plan.row_P) // len(plan.expert_N)
    weights_ECT = functional.pad(weights_BTE.permute(2, 0, 1), (0, 0, 0, block))
    weights_PT = weights_ECT.flatten(0, 1).index_select(0, plan.column_P)
    of_task_T = torch.arange(tasks, device=grad_SH.device)
    return _bags(grad_SH, torch.add(of_task_T, plan.row_P[:, None], alpha=tasks), weights_PT)


def _of_experts(grad_N: Tensor, start_E: Tensor) -> Tensor:
    """Sums over the blocks of each expert; 0 for one without pairs."""
    index_N = torch.arange(len(grad_N), device=grad_N.device)
    summed = torch.embedding_bag(grad_N.flatten(1), index_N, start_E)[0]
    return summed.unflatten(1, grad_N.shape[1:])


def autocast(*tensors: Tensor) -> list[Tensor]:
    """Cast as autocast would: custom autograd functions do not see it."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    if tensors[0].dtype == torch.float64:  # as autocast does, too
        return list(tensors)
    return [tensor.to(torch.get_autocast_dtype(kind)) for tensor in tensors]
