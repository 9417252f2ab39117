"""What tuning with fewer trials would have given: the curve of the paper's S5, computed exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Point(NamedTuple):
    """What the best of `trials` trials, drawn at random from all, is worth."""

    trials: int
    validation: float
    """Mean of the lowest validation loss."""
    validation_std: float
    """Standard deviation between one draw of trials and another."""
    test: float | None = None
    """Mean test loss of the trial with the lowest validation loss; None without test losses."""
    test_std: float | None = None


def sizes(n: int) -> list[int]:
    """The paper's numbers of trials, 1, 2, 5, 10, 15, ..., as far as there are n."""
    return [s for s in (1, 2, *range(5, n + 1, 5)) if s <= n]


def curve(validation: Sequence[float], test: Sequence[float] | None = None) -> list[Point]:
    """A point per number of trials; entry i of both losses is of trial i.

    The paper draws s of n trials without replacement, takes the one with the lowest validation
    loss, and averages over 1,000 repeats. With trials in the order of their validation loss, the
    i-th is the best of a draw when it is in it and the others are among the n - i behind it:
    C(n-i, s-1) of the C(n, s) draws. So the average over all draws is a sum over the trials; it
    is what the repeats estimate, without their noise and without a seed.
    """
    order = sorted(range(len(validation)), key=validation.__getitem__)
    ranked = [validation[i] for i in order]
    tested = None if test is None else [test[i] for i in order]
    return [_point(s, ranked, tested) for s in sizes(len(order))]


def _point(s: int, validation: Sequence[float], test: Sequence[float] | None) -> Point:
    chances = chances_of_best(len(validation), s)
    seen = _mean_and_std(chances, validation)
    return Point(s, *seen, *(() if test is None else _mean_and_std(chances, test)))


def chances_of_best(n: int, s: int) -> list[float]:
    """Per rank the chance to be the best of s that are drawn from n without replacement."""
    draws = math.comb(n, s)
    return [math.comb(n - rank, s - 1) / draws for rank in range(1, n + 1)]


def _mean_and_std(chances: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    pairs = [(p, value) for p, value in zip(chances, values, strict=True) if p]
    mean = math.fsum(p * value for p, value in pairs)
    return mean, math.sqrt(math.fsum(p * (value - mean) ** 2 for p, value in pairs))


def curve_of(results: dict[str, Any]) -> list[Point]:
    """Of the trials of a study that were drawn and came to their end, as trials.json has them."""
    complete = [t for t in results["trials"] if t["state"] == "complete" and not t["given"]]
    test = [trial["test"]["loss"] for trial in complete if trial["test"] is not None]
    validation = [trial["loss"] for trial in complete]
    return curve(validation, test if len(test) == len(validation) else None)


def tested(points: Sequence[Point]) -> list[tuple[int, float, float]]:
    """Trials, mean and standard deviation of the points that have a test loss."""
    return [(p.trials, p.test, p.test_std or 0.0) for p in points if p.test is not None]


def band(axes: Axes, place: int, label: str, points: Sequence[tuple[int, float, float]]) -> None:
    """The `place`-th line of a figure: means over trials, and one standard deviation around."""
    from recsys_moe.lab.report.plots import colour, marker

    trials, means, stds = np.array(points).reshape(-1, 3).T
    look = colour(place)
    axes.fill_between(trials, means - stds, means + stds, color=look, alpha=0.2, linewidth=0)
    axes.plot(trials, means, color=look, marker=marker(place), label=label)
