"""The figure of a page of research/results: validation loss against epochs and against minutes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from scipy.optimize import isotonic_regression

from recsys_moe.errors import ConfigError
from recsys_moe.files import replacing
from recsys_moe.lab.report.plots import QUIET, canvas, colour, render, titled
from research.results_rows import Group, Router

HEIGHT = 4.2
"""Inches of a row of panels: one per pair of task weights."""
APART = 0.047
"""Least distance of two names, of the height of a panel."""
BEGINNING = 1 / 4
"""Of the epochs of a run that the panels may cut off: what they show is where runs end."""


@dataclass(frozen=True)
class Curve:
    """One router: its seeds, and their mean over the epochs that all of them have."""

    label: str
    is_dense: bool
    seeds: list[list[float]]
    mean: list[float]
    minutes: float | None
    """Of an epoch."""


@dataclass(frozen=True)
class Panels:
    """A row of the figure."""

    title: str
    curves: list[Curve]
    target: float | None


def curve_of(router: Router) -> Curve:
    seeds = router.losses()
    # The mean of those that go on would jump where one of them stops.
    mean = [statistics.fmean(losses) for losses in zip(*seeds, strict=False)]
    minutes = None if router.seconds is None else router.seconds / 60
    return Curve(router.label, router.visits == "dense", seeds, mean, minutes)


def draw(groups: Sequence[Group], targets: Sequence[float | None], path: Path) -> None:
    """Raises ConfigError where no run has epochs."""
    rows = [
        Panels(group.title, [curve_of(router) for router in group.routers if router.epochs], target)
        for group, target in zip(groups, targets, strict=True)
    ]
    rows = [row for row in rows if row.curves]
    if not rows:
        raise ConfigError(f"--plot {path}: no run has epochs; name their files with --epochs")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as stream:
        stream.write(render("results", figure_of, rows).svg)


def figure_of(rows: Sequence[Panels]) -> Figure:
    labels = dict.fromkeys(curve.label for row in rows for curve in row.curves)
    inks = {label: colour(number) for number, label in enumerate(labels)}
    with canvas(2, len(rows), HEIGHT * len(rows)) as (figure, grid):
        for row, (left, right) in zip(rows, grid, strict=True):
            for axes, unit in ((left, "epochs"), (right, "minutes")):
                panel(axes, row, unit, inks)
                titled(axes, row.title if unit == "epochs" else "", unit, "validation loss")
            right.sharey(left)
            right.set_ylabel("")
    return figure


def heights(row: Panels) -> tuple[float, float]:
    """Of the panels: all losses but those of the beginnings, with a margin."""
    seeds = [losses for curve in row.curves for losses in curve.seeds]
    shown = [loss for losses in seeds for loss in losses[int(BEGINNING * len(losses)) :]]
    shown += [] if row.target is None else [row.target]
    low, high = min(shown), max(shown)
    margin = 0.05 * (high - low) or 0.01
    return low - margin, high + margin


def panel(axes: Any, row: Panels, unit: str, inks: dict[str, str]) -> None:
    """A line per router; by minutes without those whose seconds are unknown."""
    names = []
    for curve in row.curves:
        scale = 1.0 if unit == "epochs" else curve.minutes
        if scale is None:
            continue
        style = {"color": inks[curve.label], "linestyle": "--" if curve.is_dense else "-"}
        for losses in curve.seeds:
            axes.plot(times(losses, scale), losses, **style, linewidth=0.5, alpha=0.45)
        axes.plot(times(curve.mean, scale), curve.mean, **style)
        names.append((curve.label, len(curve.mean) * scale, curve.mean[-1], inks[curve.label]))
    if row.target is not None:
        axes.axhline(row.target, color=QUIET, linewidth=0.8, zorder=0)
        place = {"xy": (0.01, row.target), "xycoords": ("axes fraction", "data"), "va": "bottom"}
        axes.annotate(f"{row.target:g}", **place, fontsize=7.5, color=QUIET)
    axes.set_ylim(*heights(row))
    axes.set_xlim(left=0)
    name_lines(axes, names)


def times(losses: Sequence[float], scale: float) -> list[float]:
    """When each epoch has ended."""
    return [scale * epoch for epoch in range(1, len(losses) + 1)]


def name_lines(
    axes: Any, names: Sequence[tuple[str, float, float, str]], *, dots: bool = True
) -> None:
    """Names in a column beside the panel, each tied to the end of its mean: label, x, y, colour."""
    low, high = axes.get_ylim()
    names = sorted(names, key=lambda name: name[2])
    wanted = [min(max((y - low) / (high - low), 0.0), 1.0) for _, _, y, _ in names]
    for (label, x, y, ink), height in zip(names, spread_out(wanted, APART), strict=True):
        if dots:
            axes.plot([x], [y], "o", color=ink, markersize=3)
        axes.annotate(
            label,
            (x, y),
            xytext=(1.03, height),
            textcoords="axes fraction",
            arrowprops={"arrowstyle": "-", "color": ink, "lw": 0.5, "ls": ":", "relpos": (0, 0.5)},
            color=ink,
            fontsize=7.5,
            va="center",
            annotation_clip=False,
        )


def spread_out(heights: Sequence[float], apart: float) -> list[float]:
    """Ascending heights moved as little as it takes (least squares) to be apart, within 0 to 1."""
    steps = [apart * n for n in range(len(heights))]
    wanted = [height - step for height, step in zip(heights, steps, strict=True)]
    most = max(1 - steps[-1], 0.0)
    free = [min(max(float(x), 0.0), most) for x in isotonic_regression(wanted).x]
    return [height + step for height, step in zip(free, steps, strict=True)]
