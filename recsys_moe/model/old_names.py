"""Names of modules in version 0.1, found in its weights and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")
RENAMED = {
    "skip": "bilinear",
    "effects": "biases",
    "defaults": "output_means",
    "history": "item_bag",
    "item_history": "user_bag",
}
"""Part of a dotted name -> what it is now."""
LATER = ".since_last."
"""In the names of a layer that models with `gap` among their time features got later; it starts as
if it were not there."""


def with_new_parts(state: Mapping[str, T]) -> dict[str, T]:
    """The same values by their current names; current names stay."""
    return {
        ".".join(RENAMED.get(part, part) for part in name.split(".")): value
        for name, value in state.items()
    }


def with_later_parts(state: Mapping[str, T], fresh: Mapping[str, T]) -> dict[str, T]:
    """The same values, and those of a new model for parts that were not there."""
    return {name: one for name, one in fresh.items() if LATER in name} | dict(state)
