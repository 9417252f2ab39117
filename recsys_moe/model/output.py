"""What a model gives. Axes: B rows, T tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from recsys_moe.routers import Routing

NOTHING: Mapping[str, Any] = {}


class Output(NamedTuple):
    """Logits before the link, one column per task, and what else a model tells of the rows."""

    logits_BT: Tensor
    aux: Mapping[str, Any] = NOTHING
    """`routings`: the routing of each task, of models with routers; `users`: their vectors
    (B, D), of a forward pass."""

    @property
    def routings(self) -> list[Routing]:
        """The routing of each task; empty for a model without routers."""
        return self.aux.get("routings", [])
