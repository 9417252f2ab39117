"""What tuning with fewer trials would have given: the curve of the paper's S5, computed exactly."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Point:
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


def csv_text(points: Sequence[Point]) -> str:
    """A line per point; empty where there is no test loss."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["trials", "validation", "validation_std", "test", "test_std"])
    for p in points:
        writer.writerow([p.trials, p.validation, p.validation_std, p.test, p.test_std])
    return stream.getvalue()


def plot(points: Sequence[Point], title: str, files: Sequence[Path]) -> None:
    """Mean and one standard deviation over the number of trials; the ending says the format."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
    axes: Any = figure.add_subplot()
    trials = [p.trials for p in points]
    _line(
        axes,
        trials,
        [(p.validation, p.validation_std) for p in points],
        label="validation",
        color="C0",
    )
    tested = [(p.test, p.test_std) for p in points if p.test is not None and p.test_std is not None]
    if tested:
        _line(axes, trials, tested, label="test, of the best on validation", color="C1")
    axes.set(xlabel="trials", ylabel="loss", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    with matplotlib.rc_context({"svg.hashsalt": "recsys-moe"}):  # the same bytes every time
        for file in files:
            metadata = {"Date": None} if file.suffix == ".svg" else None
            part = file.with_name(f".{file.name}")
            figure.savefig(part, format=file.suffix[1:], dpi=150, metadata=metadata)
            part.replace(file)


def _line(
    axes: Any, trials: list[int], points: Sequence[tuple[float, float]], *, label: str, color: str
) -> None:
    means = [mean for mean, _ in points]
    axes.plot(trials, means, marker="o", markersize=3, color=color, label=label)
    low, high = ([mean + sign * std for mean, std in points] for sign in (-1, 1))
    axes.fill_between(trials, low, high, color=color, alpha=0.15, linewidth=0)
