"""Draws the figures of a comparison; every number comes from comparison.py."""

from __future__ import annotations

import statistics

import numpy as np
from matplotlib.figure import Figure

from recsys_moe.lab.report import plots
from recsys_moe.lab.report.comparison import Costs, Curves, Seeds
from recsys_moe.lab.report.plots import QUIET, canvas, colour

COLUMNS = 4
NAMED = 14
"""Points up to which every one of them carries its name."""


def learning(data: Curves) -> Figure:
    """A small panel per router, the others behind it in grey."""
    rows = -(-len(data.routers) // COLUMNS)
    columns = min(COLUMNS, len(data.routers))
    with canvas(columns, rows, height=0.6 + 1.65 * rows) as (figure, grid):
        panels = grid.flatten()
        ends = plots.later_range([curve for one in data.routers for curve in (one.low, one.high)])
        epochs = sorted({epoch for router in data.routers for epoch in router.epochs})
        for axes, mine in zip(panels, data.routers, strict=False):
            for other in data.routers:
                axes.plot(other.epochs, other.mean, color=QUIET, alpha=0.4, linewidth=0.8)
            axes.fill_between(mine.epochs, mine.low, mine.high, color=colour(0), alpha=0.25, lw=0)
            shape = "o-" if len(mine.epochs) == 1 else "-"
            axes.plot(mine.epochs, mine.mean, shape, color=colour(0))
            axes.set_title(mine.router, fontsize=8.5)
            axes.tick_params(labelsize=7.5)
            axes.sharey(panels[0])
            if ends:
                plots.focus(axes, epochs[0], mine.mean[:1], ends)
            plots.whole_numbers(axes.xaxis, epochs)
        for axes in panels[len(data.routers) :]:
            axes.set_visible(False)
        plots.in_common(figure, "epoch", "validation loss")
    return figure


def costs(data: Costs) -> Figure:
    with canvas(height=4.0) as (figure, grid):
        axes = grid[0][0]
        errors = np.nan_to_num(np.asarray(data.error))
        axes.errorbar(data.cost, data.loss, errors, fmt="o", color=colour(0), capsize=2, lw=1)
        best = ([values[n] for n in data.best] for values in (data.cost, data.loss))
        axes.plot(*best, drawstyle="steps-post", color=colour(1), lw=1, ls="--", zorder=0)
        shown = range(len(data.router)) if len(data.router) <= NAMED else data.best
        for place, n in enumerate(sorted(shown, key=lambda n: (data.cost[n], data.loss[n]))):
            axes.annotate(
                data.router[n],
                (data.cost[n], data.loss[n]),
                # Neighbours are often near each other: their names go to other entities.
                xytext=(-6 if place % 2 else 6, -11 if place % 4 > 1 else 5),
                textcoords="offset points",
                fontsize=8,
                ha="right" if place % 2 else "left",
                color=colour(1) if n in data.best else plots.INK,
            )
        x = "distinct experts evaluated per example at inference"
        plots.titled(axes, "Loss and cost (dashed: Pareto front)", x, "loss")
        axes.margins(x=0.25, y=0.12)
    return figure


def seeds(data: Seeds) -> Figure:
    """Every run a dot, the mean a line; the best mean on top."""
    with canvas(height=max(2.0, 0.24 * len(data.values) + 1.1)) as (figure, grid):
        axes = grid[0][0]
        for place, values in enumerate(data.values.values()):
            dots = list(values.values())
            mean = statistics.fmean(dots)
            axes.plot([mean, mean], [place - 0.32, place + 0.32], color=colour(1), linewidth=2)
            axes.plot(dots, [place] * len(dots), "o", color=colour(0), alpha=0.6, mew=0)
        axes.set_yticks(range(len(data.values)), list(data.values))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        title = data.column.title
        plots.titled(axes, title, f"{title} ({data.column.better} is better)", "")
    return figure
