"""Expert output means: running means that replace the outputs of experts not selected.

For routers with a `mean_momentum` and `Routing.default_weights_BE`.
Axes: B batch, T tasks, E experts, H expert width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from recsys_moe.routers import Router, Routing
from recsys_moe.routers.base import AllSum
from recsys_moe.routers.precision import BuiltInFloat32, full_precision, not_below_float32
from recsys_moe.routers.replay import count_once


class ExpertOutputMeans(nn.Module, metaclass=BuiltInFloat32):
    """The running mean of each expert's outputs over the pairs that training evaluates.

    A pair that several tasks chose counts once, with its dropout. A mean starts at 0, has no
    gradient, and moves in `on_step_end` only, if a row of the step selected its expert.
    """

    mean_EH: Tensor

    def __init__(self, num_experts: int, expert_dim: int, momentum: float) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean_EH", torch.zeros(num_experts, expert_dim))
        self._pending: Tensor | None = None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Like `Router`: 16 bits would round away the steps of a mean."""
        return super()._apply(lambda tensor: not_below_float32(fn, tensor), recurse)

    def forward(self, mixed_BTH: Tensor, routings: Sequence[Routing]) -> Tensor:
        """The mixtures (B, T, H) plus the weighted means."""
        given = [routing.default_weights_BE for routing in routings]
        none_BE = torch.zeros_like(routings[0].weights_BE)
        weights_BTE = torch.stack([none_BE if w_BE is None else w_BE for w_BE in given], dim=1)
        # A copy, as backward needs it and the mean moves before that.
        added_BTH = weights_BTE.to(self.mean_EH.dtype) @ self.mean_EH.clone()
        return mixed_BTH + added_BTH.to(mixed_BTH.dtype)

    def add_pairs(self, scale: float, output_PH: Tensor, real_R: Tensor, size_E: Tensor) -> None:
        """Count the pairs `real_R`, in the order of their experts, which have `size_E` each.

        `output_PH`: outputs, the factor `scale` of dropout left out.
        """
        starts_E = size_E.cumsum(0) - size_E
        bags = real_R, full_precision(output_PH), starts_E
        self._add(scale * functional.embedding_bag(*bags, mode="sum"), size_E)

    def add_dense(self, scale: float, selected_BTE: Tensor, output_EBH: Tensor) -> None:
        """Count the pairs of all that some task chose."""
        chosen_BE, output_EBH = selected_BTE.any(1), full_precision(output_EBH)
        with torch.autocast(output_EBH.device.type, enabled=False):  # sums of many terms
            sum_EH = torch.einsum("be,ebh->eh", chosen_BE.to(output_EBH.dtype), output_EBH)
        self._add(scale * sum_EH, chosen_BE.sum(0))

    def _add(self, sum_EH: Tensor, count_E: Tensor) -> None:
        counted = torch.cat([sum_EH, count_E[:, None].to(sum_EH.dtype)], dim=1)
        self._pending = count_once(self._pending, counted)

    def on_step_end(self, all_sum: AllSum) -> None:
        """m_e <- momentum m_e + (1 - momentum) (mean of e's outputs since the last call)."""
        pending = self._pending
        if pending is None:  # all processes must call all_sum as often
            num_experts, width = self.mean_EH.shape
            pending = self.mean_EH.new_zeros(num_experts, width + 1)
        total = all_sum(pending).to(self.mean_EH.dtype)
        sum_EH, count_E1 = total[:, :-1], total[:, -1:]
        moved_EH = self.mean_EH.lerp(sum_EH / count_E1.clamp(min=1), 1 - self.momentum)
        self.mean_EH.copy_(torch.where(count_E1 > 0, moved_EH, self.mean_EH))
        self._pending = None


def output_means_for(
    routers: Sequence[Router], num_experts: int, expert_dim: int
) -> ExpertOutputMeans | None:
    """None if no router uses means. Raises ValueError for different momenta."""
    momenta = {one.mean_momentum for one in routers if one.mean_momentum is not None}
    if len(momenta) > 1:
        raise ValueError(
            f"routers that share experts must have the same momentum, got {sorted(momenta)}; "
            "set one for all"
        )
    return ExpertOutputMeans(num_experts, expert_dim, momenta.pop()) if momenta else None
