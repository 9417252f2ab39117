"""Means over seeds and whether a difference between two routers is more than their spread."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from scipy import stats

LEVEL = 0.05
"""A p-value below this is called significant, as in the paper."""


@dataclass(frozen=True)
class Spread:
    mean: float
    standard_error: float | None
    """Sample standard deviation (n - 1) / sqrt(n); None for one value."""
    n: int


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard error of at least one value."""
    n = len(values)
    error = statistics.stdev(values) / math.sqrt(n) if n > 1 else None
    return Spread(statistics.fmean(values), error, n)


def unpaired_p(best: Sequence[float], other: Sequence[float], higher: bool) -> float | None:
    """One-sided unpaired t-test: how likely so large a lead is where `best` is not the better.

    The paper's test. Welch's form, because a router that samples may spread more than one that
    does not; of a lead (p up to 0.5), and with as many runs on either side, its p is never smaller
    than that of the form with equal variances. None when a side has fewer than two values or
    neither varies.
    """
    test = partial(stats.ttest_ind, best, other, equal_var=False)
    return _p(test, (best, other), higher)


def paired_p(best: Sequence[float], other: Sequence[float], higher: bool) -> float | None:
    """One-sided paired t-test; entry i of both comes from the same seed.

    None with fewer than two pairs or where all differences are the same.
    """
    differences = [a - b for a, b in zip(best, other, strict=True)]
    return _p(partial(stats.ttest_rel, best, other), (differences,), higher)


def _p(test: Callable[..., Any], samples: Sequence[Sequence[float]], higher: bool) -> float | None:
    """None where a sample has fewer than two values or none of them varies."""
    if min(map(len, samples)) < 2 or all(len(set(sample)) == 1 for sample in samples):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # values that are almost all the same
        p = float(test(alternative="greater" if higher else "less").pvalue)
    return p if math.isfinite(p) else None


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p-values adjusted so that the chance of one wrong claim among them stays below the level.

    Holm 1979, step down: the i-th smallest of m is multiplied by m - i + 1, never falls below the
    one before it, and is at most 1. None stays None and does not count.
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(p * (len(known) - rank), 1.0))
        adjusted[place] = highest
    return adjusted
