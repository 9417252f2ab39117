"""Levels of labels: the few different values that labels of a kind with `has_levels` have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recsys_moe.kinds.base import Kind

MOST_LEVELS = 32
"""Different labels of kinds with levels."""
LEVEL = "level "
"""Prefix of counts in schema.json: rows with a label."""


def levels_in(counts: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in counts.items() if key.startswith(LEVEL)}


def level_counts(labels_N: Any) -> dict[str, Any]:
    """Statistics: whether a label is the level, for those there are."""
    import numpy as np

    levels = np.unique(labels_N)[: MOST_LEVELS + 1].tolist()
    return {f"{LEVEL}{float(level)!r}": labels_N == level for level in levels}


def shares_of(levels: Sequence[float], train: Mapping[str, float]) -> tuple[float, ...]:
    """Of each level among the training labels with these counts, with half a row more for each."""
    prefix = "weighted_" if any(key.startswith("weighted_") for key in train) else ""
    rows = [train.get(f"{prefix}{LEVEL}{level!r}", 0) + 0.5 for level in levels]
    return tuple(float(f"{row / sum(rows):.9g}") for row in rows)


def check_levels(name: str, kind: Kind) -> None:
    """Raise TypeError unless task `name` has the levels and shares that its kind asks for."""
    levels, shares = kind.levels, kind.shares
    ascend = all(before < after for before, after in pairwise(levels))
    if kind.has_levels and not (levels and ascend):
        raise TypeError(f"levels of {name} must be ascending numbers, got {levels}")
    if kind.reads_text and not 2 <= len(kind.classes) == len(levels):
        raise TypeError(f"classes of {name} must be 2 or more, one a level, got {kind.classes}")
    if len(levels) != len(shares) or not all(share > 0 for share in shares):
        raise TypeError(f"shares of {name} must be one per level, above 0, got {shares}")
