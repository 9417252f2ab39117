"""The figure of a page of docs/results: validation loss against epochs and against minutes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from results_rows import Group, Router

from recsys_moe.errors import ConfigError
from recsys_moe.files import replacing
from recsys_moe.lab.report.plots import INK, QUIET, canvas, colour, later_range, render, titled

HEIGHT = 4.2
"""Inches of a row of panels: one per pair of task weights."""
APART = 0.047
"""Least distance of two names, of the height of a panel."""


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
        stream.write(render("results", figure_of, rows).png)


def figure_of(rows: Sequence[Panels]) -> Figure:
    with canvas(2, len(rows), HEIGHT * len(rows)) as (figure, grid):
        for row, (left, right) in zip(rows, grid, strict=True):
            ends = later_range([losses for curve in row.curves for losses in curve.seeds])
            for axes, unit in ((left, "epochs"), (right, "minutes")):
                panel(axes, row, unit, ends)
                titled(axes, row.title if unit == "epochs" else "", unit, "validation loss")
            right.sharey(left)
            right.set_ylabel("")
    return figure


def panel(axes: Any, row: Panels, unit: str, ends: tuple[float, float] | None) -> None:
    """A line per router; by minutes without those whose seconds are unknown."""
    names = []
    for number, curve in enumerate(row.curves):
        scale = 1.0 if unit == "epochs" else curve.minutes
        if scale is None:
            continue
        style = {"color": colour(number), "linestyle": "--" if curve.is_dense else "-"}
        for losses in curve.seeds:
            axes.plot(times(losses, scale), losses, **style, linewidth=0.5, alpha=0.45)
        axes.plot(times(curve.mean, scale), curve.mean, **style)
        names.append((curve.label, len(curve.mean) * scale, curve.mean[-1], colour(number)))
    if row.target is not None:
        axes.axhline(row.target, color=QUIET, linewidth=0.8, zorder=0)
        place = {"xy": (1, row.target), "xycoords": ("axes fraction", "data"), "ha": "right"}
        axes.annotate(f"{row.target:g}", **place, va="bottom", fontsize=7.5, color=QUIET)
    if ends:
        axes.set_ylim(*ends)
    axes.set_xlim(left=0)
    name_lines(axes, names)


def times(losses: Sequence[float], scale: float) -> list[float]:
    """When each epoch has ended."""
    return [scale * epoch for epoch in range(1, len(losses) + 1)]


def name_lines(axes: Any, names: Sequence[tuple[str, float, float, str]]) -> None:
    """Names in a column beside the panel, each tied to the end of its mean: label, x, y, colour."""
    low, high = axes.get_ylim()
    names = sorted(names, key=lambda name: name[2])
    wanted = [min(max((y - low) / (high - low), 0.0), 1.0) for _, _, y, _ in names]
    for (label, x, y, ink), height in zip(names, spread_out(wanted, APART), strict=True):
        axes.plot([x], [y], "o", color=ink, markersize=3)
        axes.annotate(
            label,
            (x, y),
            xytext=(1.03, height),
            textcoords="axes fraction",
            arrowprops={"arrowstyle": "-", "color": ink, "lw": 0.5, "ls": ":", "shrinkA": 0},
            color=INK,
            fontsize=7.5,
            va="center",
            annotation_clip=False,
        )


def spread_out(heights: Sequence[float], apart: float) -> list[float]:
    """Ascending heights moved up as little as it takes; then all down, where they pass the top."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + apart) if placed else height)
    for n in range(len(placed) - 1, -1, -1):
        most = 1.0 if n == len(placed) - 1 else placed[n + 1] - apart
        placed[n] = min(placed[n], most)
    return placed
