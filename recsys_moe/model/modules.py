"""Experts that are modules of any kind, such as CNNs: dispatch of rows, and mixtures.

Axes: B batch, T tasks, E experts, R rows of one expert, P pairs of row and expert.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from recsys_moe.routers import Routing


def sparse_modules(
    x: Tensor, weights_BTE: Tensor, selected_BTE: Tensor, experts: Iterable[nn.Module]
) -> Tensor:
    """Show each expert only the rows that some task chose for it, once. Returns (B, T, ...).

    `x`: (B, ...), whatever the experts take. `selected_BTE`: bool; weights off it get no gradient.
    An expert that no row chose gets its empty batch, so that its gradient is zero and not missing.
    """
    weights_EBT = weights_BTE.masked_fill(~selected_BTE, 0).permute(2, 0, 1)
    chosen_EB = selected_BTE.any(1).T
    expert_P, row_P = chosen_EB.nonzero(as_tuple=True)
    rows = row_P.split(chosen_EB.sum(1).tolist())
    outputs = [
        expert(x.index_select(0, row_R)) for expert, row_R in zip(experts, rows, strict=True)
    ]
    output_P = torch.cat(outputs)
    weights_PT = _broadcast(weights_EBT[expert_P, row_P], output_P)
    mixed = output_P.new_zeros(*weights_BTE.shape[:2], *output_P.shape[1:])
    return mixed.index_add(0, row_P, weights_PT * output_P[:, None])


def dense_modules(x: Tensor, weights_BTE: Tensor, experts: Iterable[nn.Module]) -> Tensor:
    """Show every expert all rows: static shapes. Returns (B, T, ...)."""
    outputs = torch.stack([expert(x) for expert in experts])
    return torch.einsum("bte,eb...->bt...", weights_BTE.to(outputs.dtype), outputs)


def mix(routing: Routing, outputs: Sequence[Tensor]) -> Tensor:
    """The mixture of one task's experts of any kind: y_b = sum_e w_be output_e(b). (B, ...).

    `outputs`: one tensor per expert, for the rows that chose it, in the order of
    `routing.rows(e)`, or for all B rows, of which the others are ignored:

        outputs = [expert(x_BD[routing.rows(e)]) for e, expert in enumerate(experts)]
        y = mix(routing, outputs)

    Raises ValueError for another number of outputs or rows, or a router with expert output means.
    """
    if routing.default_weights_BE is not None:
        raise ValueError("mix has no expert output means; use MoE with this router")
    weights_BE = routing.weights_BE
    num_rows, num_experts = weights_BE.shape
    if len(outputs) != num_experts:
        raise ValueError(
            f"mix needs an output of each of {num_experts} experts, got {len(outputs)}"
        )
    mixed = outputs[0].new_zeros(num_rows, *outputs[0].shape[1:])
    for expert, output in enumerate(outputs):
        row_R = routing.rows(expert)
        if len(output) == num_rows:
            output = output[row_R]
        if len(output) != len(row_R):
            raise ValueError(
                f"the output of expert {expert} must have the {len(row_R)} rows of "
                f"routing.rows({expert}), or all {num_rows}, got {len(output)}"
            )
        weight_R = _broadcast(weights_BE[row_R, expert][:, None], output)[:, 0]
        mixed = mixed.index_add(0, row_R, output * weight_R)
    return mixed


def _broadcast(weights_PT: Tensor, output_P: Tensor) -> Tensor:
    """Weights (P, T, 1, ...) to multiply outputs (P, 1, ...) with, in their dtype."""
    return weights_PT.to(output_P.dtype).view(*weights_PT.shape, *[1] * (output_P.dim() - 1))
