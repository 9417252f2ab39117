"""Draws the figures of a run; every number comes from the data classes beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from recsys_moe.lab.report.experts import TWINS, ExpertLoad, Likeness, Sharpness
from recsys_moe.lab.report.learning import Consistency, LearningCurves
from recsys_moe.lab.report.plots import (
    INK,
    LINE,
    MARKERS,
    QUIET,
    as_percent,
    canvas,
    colour,
    focus,
    headed,
    in_common,
    later_range,
    legend_above,
    marker,
    panels,
    titled,
    whole_numbers,
)
from recsys_moe.lab.report.quality import ErrorBy, Reliability, Roc
from recsys_moe.lab.report.specialisation import ExpertMap, GenreBreakdown

ANNOTATED = 20
"""Rows up to which the cells of a heat map carry their number."""
MOST_TICKS = 64
"""Experts up to which each one has its tick."""
ALIKE = LinearSegmentedColormap.from_list("alike", ["#fbfaf6", "#56b4e9", "#0a3d62"])
LIFT = LinearSegmentedColormap.from_list("lift", ["#b35806", "#f7f4ec", "#0072b2"])
UNKNOWN = "#b9b6ad"


def learning(data: LearningCurves) -> Figure:
    with panels(1 + len(data.metrics), height=2.7) as (figure, grid):
        trained = f"training, of {data.trained_by}" if data.trained_by else "training"
        grid[0].plot(data.epochs, data.train_loss, "o-", color=colour(5), label=trained)
        shown = {f"Loss (best: epoch {data.best_epoch})": data.val_loss, **data.metrics}
        for axes, (name, values) in zip(grid, shown.items(), strict=True):
            axes.plot(data.epochs, values, "s-", color=colour(0), label="validation")
            headed(axes, name)
            curves = [data.train_loss, values] if axes is grid[0] else [values]
            if ends := later_range(curves):
                focus(axes, data.epochs[0], [curve[0] for curve in curves], ends)
            axes.axvline(data.best_epoch, color=QUIET, linewidth=0.9, linestyle=":")
            whole_numbers(axes.xaxis, data.epochs)
        in_common(figure, "epoch")
        legend_above(figure, grid[0])
    return figure


def load(data: ExpertLoad) -> Figure:
    """Bars of the visits per task; a dot where the first choices end."""
    experts = len(data.either)
    with panels(len(data.visits), height=1.2 + min(0.24 * experts, 16.0)) as (figure, grid):
        for task, axes in zip(data.visits, grid, strict=True):
            places, visits = range(experts), data.visits[task]
            colours = [colour(1) if e in data.idle else colour(0) for e in places]
            axes.barh(places, visits, color=colours, height=0.7)
            axes.plot(data.first[task], places, "D", color=INK, markersize=3.5, linestyle="none")
            axes.axvline(data.even[task], color=QUIET, linestyle="--", linewidth=1)
            for e in data.idle:
                end = max(visits[e], data.first[task][e])
                axes.annotate(" idle", (end, e), va="center", color=colour(1))
            headed(axes, task)
            whole_numbers(axes.yaxis, range(experts), MOST_TICKS)
            axes.invert_yaxis()
            axes.grid(axis="y", visible=False)
            as_percent(axes.xaxis)
        in_common(figure, "share of examples that visit the expert", "expert")
    return figure


def entropy(data: Sharpness) -> Figure:
    edges = np.asarray(data.edges)
    with panels(len(data.entropy), height=2.6) as (figure, grid):
        for task, axes in zip(data.entropy, grid, strict=True):
            axes.bar(edges[:-1], data.entropy[task], np.diff(edges), align="edge", color=colour(0))
            axes.axvline(data.mean[task], color=colour(1), label="mean")
            headed(axes, f"{task}: mean {data.mean[task]:.2f}")
            axes.set_xlim(0, edges[-1])
            as_percent(axes.yaxis)
        basis = " or ".join(sorted(set(data.basis.values())))
        x = f"entropy of the {basis} (nats; {edges[-1]:.2f} is even)"
        in_common(figure, x, "share of examples")
        legend_above(figure, grid[0])
    return figure


def mass(data: Sharpness) -> Figure:
    with panels(len(data.mass), height=2.6) as (figure, grid):
        for task, axes in zip(data.mass, grid, strict=True):
            values, k = data.mass[task], data.kept[task]
            axes.plot(range(1, len(values) + 1), values, "o-", color=colour(0))
            axes.plot([k], [values[k - 1]], "o", color=colour(1), markersize=8)
            headed(axes, f"{task}: {100 * values[k - 1]:.1f}% at k = {k}")
            axes.set_ylim(0, 1.04)
            whole_numbers(axes.xaxis, range(1, len(values) + 1))
            as_percent(axes.yaxis)
        basis = " or ".join(sorted(set(data.basis.values())))
        in_common(figure, "most probable experts", f"share of the {basis}")
    return figure


def likeness(data: Likeness) -> Figure:
    values = np.array(data.cosine, dtype=float)
    with canvas(height=min(max(2.6, 1.6 + 0.3 * len(values)), 6.5)) as (figure, grid):
        axes = grid[0][0]
        _heat(axes, values, ALIKE, numbers=values, digits=2, vmin=0.0, vmax=1.0)
        axes.set_aspect("equal")
        for a, b, _ in data.twins:
            for x, y in ((a, b), (b, a)):
                axes.plot(x, y, "s", markersize=15, markerfacecolor="none", color=colour(1))
        titled(axes, f"Cosine of outputs (framed: {TWINS} and more)", "expert", "expert")
        whole_numbers(axes.xaxis, range(len(values)), MOST_TICKS)
        whole_numbers(axes.yaxis, range(len(values)), MOST_TICKS)
    return figure


def _heat(
    axes: Axes, values: Any, colours: Any, *, numbers: Any, digits: int, **scale: Any
) -> None:
    """A heat map of `values` with `numbers` in its cells where they are few enough to be read."""
    colours = colours.with_extremes(bad=UNKNOWN)
    image = axes.imshow(values, cmap=colours, aspect="auto", interpolation="nearest", **scale)
    axes.grid(False)
    if len(values) > ANNOTATED:
        axes.figure.colorbar(image, ax=axes)
        return
    for (row, column), number in np.ndenumerate(numbers):
        if math.isnan(number):
            continue
        r, g, b, _ = image.cmap(image.norm(values[row, column]))
        ink = "#111111" if 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.5 else "#fefefe"
        place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6.5}
        axes.text(column, row, f"{number:.{digits}f}", color=ink, **place)


def consistency(data: Consistency) -> Figure:
    with canvas(height=2.8) as (figure, grid):
        axes = grid[0][0]
        for number, (task, same) in enumerate(data.same.items()):
            shape = f"{MARKERS[number % len(MARKERS)]}-"
            axes.plot(data.epochs, same, shape, color=colour(number), label=task)
            axes.plot(data.epochs, data.chance[task], ":", color=colour(number), linewidth=1.2)
        axes.plot([], [], ":", color=QUIET, linewidth=1.2, label="by chance")
        titled(axes, "Examples that keep their top expert", "epoch", "same as an epoch before")
        axes.set_ylim(0, 1.04)
        whole_numbers(axes.xaxis, data.epochs)
        as_percent(axes.yaxis)
        legend_above(figure, axes)
    return figure


def _diagonal(figure: Figure, axes: Axes, label: str) -> None:
    """From (0, 0) to (1, 1) in a square of shares, with a legend for the curves above it."""
    axes.plot([0, 1], [0, 1], "--", color=QUIET, linewidth=1, label=label, zorder=1)
    axes.set(aspect="equal", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    legend_above(figure, axes)


def roc(data: Roc) -> Figure:
    with canvas(height=3.9) as (figure, grid):
        axes = grid[0][0]
        label = f"AUC {data.auc:.4f}"
        axes.plot(data.false_positive, data.true_positive, color=colour(0), label=label)
        titled(axes, data.task, "false positive rate", "true positive rate")
        _diagonal(figure, axes, "guessing")
    return figure


def calibration(data: Reliability) -> Figure:
    with canvas(height=3.9) as (figure, grid):
        axes = grid[0][0]
        for number, (name, curve) in enumerate(data.curves.items()):
            sizes = 8 + 120 * np.asarray(curve["rows"]) / max(data.rows, 1)
            label = f"{name}: off by {100 * data.error[name]:.1f} points"
            points, ink = (curve["predicted"], curve["observed"]), colour(number)
            axes.plot(*points, marker=MARKERS[number], markersize=4, color=ink, label=label)
            axes.scatter(*points, s=sizes, color=ink, alpha=0.35, linewidths=0)
        titled(axes, data.task, "mean predicted probability", "share of positives")
        _diagonal(figure, axes, "perfect")
    return figure


def error(data: list[ErrorBy]) -> Figure:
    with panels(len(data), height=2.9) as (figure, grid):
        for axes, groups in zip(grid, data, strict=True):
            axes.sharey(grid[0])
            places = range(len(groups.value))
            margins = np.nan_to_num(np.asarray(groups.margin, dtype=float))
            axes.errorbar(places, groups.value, margins, fmt="o-", color=colour(0), capsize=3)
            ends = zip(groups.low, groups.high, strict=True)
            labels = [f"{a}" if a == b else f"{a}-{b}" for a, b in ends]
            axes.set_xticks(list(places), labels, rotation=30, ha="right")
            headed(axes, f"{groups.task} by {groups.by}")
            axes.grid(axis="x", visible=False)
        in_common(figure, "watched rows in training", data[0].metric)
    return figure


def expert_map(data: ExpertMap) -> Figure:
    x, y = np.asarray(data.x), np.asarray(data.y)
    with panels(len(data.top), height=4.1) as (figure, grid):
        for task, axes in zip(data.top, grid, strict=True):
            top = np.asarray(data.top[task])
            for e in np.unique(top).tolist():
                mine, look = top == e, _look(e)
                axes.scatter(
                    x[mine], y[mine], s=7, alpha=0.7, linewidths=0, rasterized=True, **look
                )
                if e >= 0:
                    middle = np.median(x[mine]), np.median(y[mine])
                    box = {"boxstyle": "round,pad=0.2", "fc": "#fefefe", "ec": colour(e)}
                    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8}
                    axes.annotate(str(e), middle, bbox=box, color="#111111", **style)
            titled(axes, "", f"{data.projection} 1", f"{data.projection} 2")
            headed(axes, task)
            axes.set(xticks=[], yticks=[])
        seen = sorted({e for top in data.top.values() for e in top if e >= 0})
        if len(seen) <= MOST_TICKS:
            dots = [Line2D([], [], linestyle="none", label=str(e), **_look(e)) for e in seen]
            figure.legend(handles=dots, loc="outside lower center", ncols=16, columnspacing=1.0)
    return figure


def _look(expert: int) -> dict[str, Any]:
    """Of an expert's dots; -1 is nobody."""
    if expert < 0:
        return {"color": LINE, "marker": "."}
    return {"color": colour(expert), "marker": marker(expert)}


def genres(data: GenreBreakdown) -> Figure:
    """log2 of the lift, so that twice and half as often are equally far from the middle."""
    lift = np.array(data.lift, dtype=float)
    with np.errstate(divide="ignore"):
        values = np.clip(np.log2(lift), -2, 2)
    with canvas(height=2.0 + min(0.26 * len(values), 16.0)) as (figure, grid):
        axes = grid[0][0]
        _heat(axes, values, LIFT, numbers=lift, digits=1, norm=TwoSlopeNorm(0, -2, 2))
        titled(axes, f"{data.task}: times as often as on average", "", "expert")
        axes.set_xticks(range(len(data.genres)), data.genres, rotation=45, ha="right")
        whole_numbers(axes.yaxis, range(len(values)), MOST_TICKS)
    return figure
