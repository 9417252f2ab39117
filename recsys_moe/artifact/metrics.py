"""Metrics of routing, fed batch by batch. Those of tasks are in `recsys_moe.kinds`."""

from __future__ import annotations

import torch
from torch import Tensor


class RoutingMetrics:
    """Where a task's router sends examples: experts per example and each expert's load."""

    def __init__(self) -> None:
        self.visits: Tensor | int = 0
        self.rows = 0

    def update(self, selected_BE: Tensor) -> None:
        self.visits = self.visits + selected_BE.sum(0).cpu()
        self.rows += len(selected_BE)

    def merge(self, other: RoutingMetrics) -> None:
        """Add the rows of `other`."""
        self.visits = self.visits + other.visits
        self.rows += other.rows

    def compute(self) -> dict[str, float | list[float]]:
        """`load`: share of all visits that each expert received; it sums to 1. {} without rows."""
        if not self.rows:
            return {}
        visits = torch.as_tensor(self.visits).double()
        total = visits.sum().clamp(min=1)
        return {
            "experts_per_example": float(visits.sum() / self.rows),
            "load": (visits / total).tolist(),
        }
