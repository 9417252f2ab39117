"""What a model gives. Axes: B rows, T tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from recsys_moe.errors import ConfigError
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


def checked(output: Any, model: str, logits: int) -> Output:
    """What `score` of the class called `model` returned. Raises ConfigError for anything but an
    Output of `logits` columns."""
    if isinstance(output, Output) and output.logits_BT.shape[1:] == (logits,):
        return output
    got = type(output).__name__
    if isinstance(output, Output):
        got = f"Output(logits of shape {tuple(output.logits_BT.shape)})"
    raise ConfigError(
        f"score of {model} must return recsys_moe.Output(logits) with a row per pair and "
        f"{logits} columns, got {got}; a task with classes has a column per class: "
        "ModelShape.num_logits"
    )
