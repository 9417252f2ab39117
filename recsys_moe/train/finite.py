"""Ends a run whose values are NaN or infinite."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from recsys_moe.errors import RunError


class NotFiniteError(RunError):
    """A loss, a weight or a state of the optimizer is NaN or infinite."""


def is_finite(values: Tensor) -> bool:
    """By the sum first, which takes a thirtieth of the time of a mask; it may have overflowed."""
    if not values.is_floating_point():
        return True
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())


def not_finite(named: Iterable[tuple[str, Tensor]]) -> str:
    """The first name whose values are not all finite; empty where they are."""
    return next((name for name, values in named if not is_finite(values)), "")


def refuse(name: str, step: int, value: object = "nan or infinite") -> None:
    """Raise NotFiniteError if there is a name."""
    if name:
        name = name.removeprefix("model.")
        raise NotFiniteError(
            f"{name} became {value} by step {step}; lower optim.lr or check the labels"
        )
