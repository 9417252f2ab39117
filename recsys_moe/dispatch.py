"""How the chosen (example, expert) pairs are computed. Every way equals `moe.naive_moe`.

Axes: B batch, T tasks, E experts, D input width, H expert width, P chosen pairs sorted by expert.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from recsys_moe.seeds import RandomStream


def sparse_experts(
    x_BD: Tensor,
    weights_BTE: Tensor,
    selected_BE: Tensor,
    kernel_EDH: Tensor,
    bias_EH: Tensor,
    dropout: Dropout,
) -> Tensor:
    """Evaluate the selected pairs only, each once, and mix them per task. Returns (B, T, H)."""
    expert_P, row_P = selected_BE.t().nonzero(as_tuple=True)
    sizes_E = selected_BE.sum(0).tolist()
    keep_PH = dropout.mask((len(row_P), kernel_EDH.shape[-1]), x_BD)
    x_PD, kernel_EDH, bias_EH = _autocast(x_BD.index_select(0, row_P), kernel_EDH, bias_EH)
    hidden_PH = _GroupedReluLinear.apply(x_PD, kernel_EDH, bias_EH, keep_PH, sizes_E, dropout.scale)
    weights_PT = weights_BTE[row_P, :, expert_P]
    return _mix(hidden_PH, weights_PT, row_P, len(x_BD))


def dense_experts(
    x_BD: Tensor, weights_BTE: Tensor, kernel_EDH: Tensor, bias_EH: Tensor, dropout: Dropout
) -> Tensor:
    """Evaluate every expert on every example in one batched matmul. Returns (B, T, H)."""
    x_EBD = x_BD.expand(len(kernel_EDH), -1, -1)
    hidden_EBH = torch.relu(torch.baddbmm(bias_EH[:, None], x_EBD, kernel_EDH))
    keep_EBH = dropout.mask(tuple(hidden_EBH.shape), x_BD)
    if keep_EBH is not None:
        hidden_EBH = hidden_EBH * keep_EBH * dropout.scale
    return torch.einsum("bte,ebh->bth", weights_BTE.to(hidden_EBH.dtype), hidden_EBH)


class Dropout(nn.Module):
    """Keep masks from raw random bytes: on a CPU far cheaper than F.dropout.

    The keep probability is rounded to 1/256 and activations are scaled by its exact inverse, so
    the expectation is right for every rate. A module, so that it is on exactly where `training`
    is True: Lightning sets that attribute on each module and does not call `train()`.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"model.dropout must be in [0, 1), got {rate}")
        self.keep_of_256 = max(1, round(256 * (1 - rate)))
        self.stream = RandomStream()

    @property
    def scale(self) -> float:
        """Factor on the kept activations; 1 in evaluation."""
        return 256 / self.keep_of_256 if self.training else 1.0

    def mask(self, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
        """bool mask of the activations to keep, or None when all are kept."""
        if not self.training or self.keep_of_256 == 256:
            return None
        size = torch.Size(shape).numel()
        words = torch.empty((size + 7) // 8, dtype=torch.int64, device=like.device)
        # From -2**63 to the top: the default range leaves bit 63 at 0, and with it every eighth
        # byte below 128, which would always be kept at rate 0.5.
        words.random_(-(2**63), None, generator=self.stream.generator(like.device))
        return (words.view(torch.uint8)[:size] < self.keep_of_256).view(shape)


class _GroupedReluLinear(torch.autograd.Function):
    """relu(x W_e + b_e) with dropout for pairs sorted by expert, one matmul per visited expert.

    Gradients are written into one buffer per parameter. Indexing `kernel[e]` under autograd would
    make a full (E, D, H) gradient for every expert instead.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_PD: Tensor,
        kernel_EDH: Tensor,
        bias_EH: Tensor,
        keep_PH: Tensor | None,
        sizes_E: list[int],
        scale: float,
    ) -> Tensor:
        out_PH = x_PD.new_empty(len(x_PD), kernel_EDH.shape[-1])
        for expert, part in _segments(sizes_E):
            torch.addmm(bias_EH[expert], x_PD[part], kernel_EDH[expert], out=out_PH[part])
        out_PH.relu_()
        if keep_PH is not None:
            out_PH.mul_(keep_PH).mul_(scale)
        ctx.save_for_backward(x_PD, kernel_EDH, out_PH)
        ctx.sizes_E, ctx.scale = sizes_E, scale
        return out_PH

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_PH: Tensor) -> tuple[Tensor | None, ...]:
        x_PD, kernel_EDH, out_PH = ctx.saved_tensors
        # out is 0 exactly where the ReLU or the dropout stopped the signal.
        grad_PH = (grad_PH * (out_PH != 0)).mul_(ctx.scale)
        grad_x_PD = torch.empty_like(x_PD)
        grad_kernel_EDH = torch.zeros_like(kernel_EDH)
        grad_bias_EH = kernel_EDH.new_zeros(kernel_EDH.shape[0], kernel_EDH.shape[2])
        for expert, part in _segments(ctx.sizes_E):
            torch.mm(grad_PH[part], kernel_EDH[expert].t(), out=grad_x_PD[part])
            torch.mm(x_PD[part].t(), grad_PH[part], out=grad_kernel_EDH[expert])
            torch.sum(grad_PH[part], 0, out=grad_bias_EH[expert])
        return grad_x_PD, grad_kernel_EDH, grad_bias_EH, None, None, None


def _segments(sizes_E: list[int]) -> list[tuple[int, slice]]:
    """(expert, slice of its pairs) for every expert that was visited."""
    segments, start = [], 0
    for expert, size in enumerate(sizes_E):
        if size:
            segments.append((expert, slice(start, start + size)))
        start += size
    return segments


def _mix(hidden_PH: Tensor, weights_PT: Tensor, row_P: Tensor, num_rows: int) -> Tensor:
    """Weighted sum of the pairs of each example, per task: (num_rows, T, H)."""
    weighted_PTH = hidden_PH[:, None] * weights_PT.to(hidden_PH.dtype)[..., None]
    mixed_BTH = weighted_PTH.new_zeros(num_rows, *weighted_PTH.shape[1:])
    return mixed_BTH.index_add(0, row_P, weighted_PTH)


def _autocast(*tensors: Tensor) -> list[Tensor]:
    """Cast as autocast would: custom autograd functions do not see it."""
    kind = tensors[0].device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    return [tensor.to(torch.get_autocast_dtype(kind)) for tensor in tensors]
