"""Floats of routers: 32 bits or 64, whatever the layer around them has.

Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)


class BuiltInFloat32(ABCMeta):
    """Of abstract classes whose instances are made in float32 where torch's default has 16 bits."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        default = torch.get_default_dtype()
        if default not in HALVES:
            return super().__call__(*args, **kwargs)
        torch.set_default_dtype(torch.float32)
        try:
            return super().__call__(*args, **kwargs)
        finally:
            torch.set_default_dtype(default)


def gate_logits(gate: Callable[[Tensor], Tensor], x_BD: Tensor) -> Tensor:
    """float32 logits (B, E), also under autocast: a softmax of bf16 logits drifts."""
    if not torch.is_autocast_enabled(x_BD.device.type):  # entering costs as much as a small gate
        return gate(full_precision(x_BD))
    with torch.autocast(x_BD.device.type, enabled=False):
        return gate(full_precision(x_BD))


def full_precision(x_BD: Tensor) -> Tensor:
    """float32 where `x_BD` has 16 bits, itself otherwise."""
    return x_BD.float() if x_BD.dtype in HALVES else x_BD


def not_below_float32(fn: Callable[[Tensor], Tensor], tensor: Tensor) -> Tensor:
    """fn(tensor), which moves or casts; where that makes 32 bits 16, only moved."""
    changed = fn(tensor)
    if changed.dtype in HALVES and tensor.dtype == torch.float32:
        return tensor.to(changed.device)
    return changed
