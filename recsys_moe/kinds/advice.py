"""Which kind suits training labels better than the one that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SKEWED = 2.0
"""Skewness from which few rows make the squared error; an exponential law has 2."""
WIDE = 1.5
"""Standard deviations in means from which they do."""
RARE = 0.005
"""Share of positives below which the loss of a row says next to nothing."""


def of_numbers(label_N: Any) -> str:
    """`label_N`: (N,) float64, N > 0."""
    low, high = label_N.min(), label_N.max()
    if low == high:
        return f"all labels are {low:g} in float32: nothing to learn"
    if low == 0 and high == 1 and ((label_N == 0) | (label_N == 1)).all():
        return "labels are 0 and 1: use binary"
    skewness = skewness_of(label_N)
    if low < 0 or skewness < SKEWED:
        return ""
    if (label_N == label_N.round()).all() and low == 0:
        return f"skewness {skewness:.0f}, whole numbers from 0: use count"
    zeros = ", with empty cells for 0" if low == 0 else ""
    return f"skewness {skewness:.0f}: use duration{zeros}"


def of_counts(counts: Mapping[str, float]) -> str:
    """By the counts of a regression in schema.json, empty where it has none."""
    mean, std = counts.get("mean", 0.0), counts.get("std", 0.0)
    if counts.get("min", -1.0) < 0 or std <= WIDE * mean:
        return ""
    return (
        f"labels have mean {mean:.3g}, deviation {std:.3g} and maximum {counts['max']:.3g}; "
        "try kind duration or count"
    )


def of_positives(label_N: Any) -> str:
    """`label_N`: (N,), 0 or 1."""
    share = label_N.mean()
    if 0 < share < RARE:
        return f"{share:.2%} positive: judge it by AUC and lists, as its loss hardly moves"
    return ""


def skewness_of(label_N: Any) -> float:
    """Third standardised moment."""
    off_N = label_N - label_N.mean()
    return float((off_N**3).mean() / (off_N**2).mean() ** 1.5)
