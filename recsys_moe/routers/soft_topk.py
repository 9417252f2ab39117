"""Differentiable top-k mask by isotonic regression, used as a router.

Sander et al. 2023, https://arxiv.org/abs/2302.01425 (p-norm relaxation of the top-k mask, solved
by pooling adjacent violators). Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from recsys_moe.routers.base import GatedRouter, Routing
from recsys_moe.routers.precision import gate_logits
from recsys_moe.routers.selection import descending_order, largest_k
from recsys_moe.routers.settings import KConfig

Norm = Literal[2, "4/3"]


class SoftTopKRouter(GatedRouter):
    """w is proportional to mask * softmax(o) with o = Ax + b and a mask in [0, 1] that sums to k.

    The mask has k entries or more that are not 0: how many depends on how close the logits
    are, and the cost is not bounded. `softness` towards 0 gives the hard top-k router. The paper
    defines the mask; how it enters the weights is our choice.
    """

    class Config(KConfig):
        name: str = "soft_topk"
        k: int = 2
        """Sum of the mask, 1..num_experts."""
        softness: float = Field(default=0.1, gt=0, allow_inf_nan=False)
        """Regularisation l, > 0, in units of the logits: gaps beyond it are decided hard."""
        p: Norm = "4/3"
        """Norm of the relaxation: "4/3" (smooth) or 2 (piecewise linear)."""

    summary = "differentiable soft top-k mask on a softmax; k experts or more"
    sparsity = "dense to sparse"

    def forward(self, x_BD: Tensor, user_B: Tensor | None = None) -> Routing:
        logits_BE = gate_logits(self.gate, x_BD)
        probs_BE = logits_BE.softmax(-1)
        mask_BE, selected_BE = soft_topk_mask(
            logits_BE, self.config.k, self.config.softness, self.config.p
        )
        unscaled_BE = mask_BE * probs_BE
        weights_BE = unscaled_BE / unscaled_BE.sum(-1, keepdim=True)
        return Routing(weights_BE, selected_BE, probs_BE, logits_BE)


def soft_topk_mask(
    values_BE: Tensor, k: int, softness: float, p: Norm = "4/3"
) -> tuple[Tensor, Tensor]:
    """Mask (B, E) in [0, 1], rows sum to k, and bool (B, E) where it is not 0 by construction.

    mask = ((x - v) / l)^(q-1) with q = p / (p-1), so exponent 1 for p = 2 and 3 for p = 4/3, and v
    the isotonic regression of the sorted x, less l on the k largest. Outside the one block
    that is pooled the mask is 1 on the k largest and 0 elsewhere, without gradient.
    """
    exponent = 1 if p == 2 else 3
    top_BE = largest_k(values_BE, k)
    reference_B1 = values_BE.detach().masked_fill(~top_BE, torch.inf).amin(-1, keepdim=True)
    scaled_BE = (values_BE - reference_B1) / softness  # in units of l, near 0 where it matters
    pooled_BE = _pooled(scaled_BE.detach(), top_BE, exponent)
    level_B1 = _level_with_gradient(scaled_BE, pooled_BE, top_BE, exponent)
    inside_BE = (scaled_BE - level_B1).clamp(0.0, 1.0) ** exponent
    mask_BE = torch.where(pooled_BE, inside_BE, top_BE.to(values_BE.dtype))
    return mask_BE, top_BE | pooled_BE


def _pooled(scaled_BE: Tensor, top_BE: Tensor, exponent: int) -> Tensor:
    """bool (B, E): the block that the isotonic regression pools; may be empty.

    Sorted, the targets decrease within the k largest (x - l) and within the rest (x), so only where
    the two meet can the order be violated. The block starts there, and takes in the next entry on
    either side while that is on the wrong side of the block's level (adjacent violators).
    """
    order_BE = descending_order(scaled_BE)
    scaled_BE, top_BE = scaled_BE.gather(1, order_BE), top_BE.gather(1, order_BE)
    target_BE = scaled_BE - top_BE.to(scaled_BE.dtype)
    at_border_BE = _next_to(top_BE) & _next_to(~top_BE)
    rises_B1 = _largest(target_BE, ~top_BE) > -_largest(-target_BE, top_BE)
    pooled_BE = at_border_BE & rises_B1
    for _ in range(scaled_BE.shape[1] - 2):
        level_B1 = _level(scaled_BE, pooled_BE, top_BE, exponent)
        too_low_BE, too_high_BE = target_BE < level_B1, target_BE > level_B1
        violates_BE = (top_BE & too_low_BE) | (~top_BE & too_high_BE)
        pooled_BE = pooled_BE | (_next_to(pooled_BE) & violates_BE)
    return torch.zeros_like(pooled_BE).scatter(1, order_BE, pooled_BE)


def _next_to(mask_BE: Tensor) -> Tensor:
    """`mask` grown by one position to either side."""
    padded = functional.pad(mask_BE, (1, 1))
    return padded[:, :-2] | padded[:, 1:-1] | padded[:, 2:]


def _largest(values_BE: Tensor, mask_BE: Tensor) -> Tensor:
    """(B, 1), -inf for an empty mask."""
    return values_BE.masked_fill(~mask_BE, -torch.inf).amax(-1, keepdim=True)


def _level(scaled_BE: Tensor, pooled_BE: Tensor, top_BE: Tensor, exponent: int) -> Tensor:
    """v of the block, (B, 1): the root of sum (x - v)^exponent = number of top entries in it.

    Around the mean: v = mean + u with u^3 + 3 a u = q, which has one real root since a >= 0.
    """
    count_B1 = pooled_BE.sum(-1, keepdim=True).clamp(min=1).to(scaled_BE.dtype)
    top_B1 = (pooled_BE & top_BE).sum(-1, keepdim=True)
    mean_B1 = scaled_BE.masked_fill(~pooled_BE, 0.0).sum(-1, keepdim=True) / count_B1
    if exponent == 1:
        return mean_B1 - top_B1 / count_B1
    apart_BE = (scaled_BE - mean_B1).masked_fill(~pooled_BE, 0.0)
    a = (apart_BE**2).sum(-1, keepdim=True) / count_B1
    q = ((apart_BE**3).sum(-1, keepdim=True) - top_B1) / count_B1
    # Cardano's c - a/c with c as below, times (c^2 + a + a^2/c^2) over itself: cancels nothing.
    c = (q.abs() / 2 + (q**2 / 4 + a**3).sqrt()).clamp(min=1e-12) ** (1 / 3)
    return mean_B1 + q / (c**2 + a + (a / c) ** 2)


def _level_with_gradient(
    scaled_BE: Tensor, pooled_BE: Tensor, top_BE: Tensor, exponent: int
) -> Tensor:
    """`_level` with the derivative of the implicit function, (x - v)^(exponent-1) normalised."""
    with torch.no_grad():
        level_B1 = _level(scaled_BE, pooled_BE, top_BE, exponent)
        slope_BE = ((scaled_BE - level_B1) ** (exponent - 1)).masked_fill(~pooled_BE, 0.0)
        total_B1 = slope_BE.sum(-1, keepdim=True)
        share_BE = slope_BE / torch.where(total_B1 > 0, total_B1, 1.0)
    change_BE = (scaled_BE - scaled_BE.detach()).masked_fill(~pooled_BE, 0.0)
    return level_B1 + (share_BE * change_BE).sum(-1, keepdim=True)
