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
    if ((label_N == low) | (label_N == high)).all():
        places = "" if (low, high) == (0, 1) else ", with 0 and 1 instead"
        return f"labels are {low:.9g} and {high:.9g}: use binary{places}"
    skewness = skewness_of(label_N)
    if low < 0 or high <= 1 or skewness < SKEWED:  # the square of a share is bounded
        return ""
    if (label_N == label_N.round()).all():
        otherwise = ", or duration if they are no numbers of things" if low else ""
        return f"skewness {skewness:.0f}, whole numbers: use count{otherwise}"
    zeros = ", with empty cells for 0" if low == 0 else ""
    return f"skewness {skewness:.0f}: use duration{zeros}"


def of_counts(counts: Mapping[str, float]) -> str:
    """By the counts of a regression in schema.json, empty where it has none."""
    mean, std = counts.get("mean", 0.0), counts.get("std", 0.0)
    if counts.get("min", -1.0) < 0 or counts["max"] <= 1 or std <= WIDE * mean:
        return ""
    kinds = "duration (count for whole numbers)" if counts["min"] > 0 else "count for whole numbers"
    return (
        f"labels have mean {mean:.3g}, deviation {std:.3g} and maximum {counts['max']:.3g}; "
        f"try kind {kinds}"
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
