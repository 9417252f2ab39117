"""Names that parts of the model had in version 0.1, in weights and checkpoints."""

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


def with_new_names(state: Mapping[str, T]) -> dict[str, T]:
    """The same values by the names that parts have now; new names stay."""
    return {
        ".".join(RENAMED.get(part, part) for part in name.split(".")): value
        for name, value in state.items()
    }
