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
    QUIET,
    as_percent,
    canvas,
    colour,
    marker,
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
    with canvas(1 + len(data.metrics), height=2.9) as (figure, grid):
        axes = grid[0][0]
        axes.plot(data.epochs, data.train_loss, "o-", color=colour(5), label="training")
        axes.plot(data.epochs, data.val_loss, "s-", color=colour(0), label="validation")
        titled(axes, f"Loss (best: epoch {data.best_epoch})", "epoch", "task-weighted loss")
        axes.legend()
        for axes, (name, values) in zip(grid[0][1:], data.metrics.items(), strict=True):
            axes.plot(data.epochs, values, "s-", color=colour(0))
            titled(axes, name, "epoch", f"{name} (validation)")
        for axes in grid[0]:
            axes.axvline(data.best_epoch, color=QUIET, linewidth=0.9, linestyle=":")
            whole_numbers(axes, data.epochs)
    return figure


def load(data: ExpertLoad) -> Figure:
    """Bars of the visits per task; a dot where the first choices end."""
    experts = len(data.either)
    with canvas(len(data.visits), height=1.2 + min(0.24 * experts, 16.0)) as (figure, grid):
        for task, axes in zip(data.visits, grid[0], strict=True):
            places, visits = range(experts), data.visits[task]
            colours = [colour(1) if e in data.idle else colour(0) for e in places]
            axes.barh(places, visits, color=colours, height=0.7)
            axes.plot(data.first[task], places, "D", color=INK, markersize=3.5, linestyle="none")
            axes.axvline(data.even[task], color=QUIET, linestyle="--", linewidth=1)
            for e in data.idle:
                axes.annotate(
                    " idle", (max(visits[e], data.first[task][e]), e), va="center", color=colour(1)
                )
            titled(axes, task, "share of examples that visit the expert", "expert")
            _tick_experts(axes.yaxis, experts)
            axes.invert_yaxis()
            axes.grid(axis="y", visible=False)
            as_percent(axes.xaxis)
    return figure


def entropy(data: Sharpness) -> Figure:
    edges = np.asarray(data.edges)
    with canvas(len(data.entropy), height=2.7) as (figure, grid):
        for task, axes in zip(data.entropy, grid[0], strict=True):
            axes.bar(edges[:-1], data.entropy[task], np.diff(edges), align="edge", color=colour(0))
            if not math.isnan(data.mean[task]):
                axes.axvline(data.mean[task], color=colour(1))
                axes.annotate(
                    f" mean {data.mean[task]:.2f} ",
                    (data.mean[task], 0.94),
                    xycoords=("data", "axes fraction"),
                    color=colour(1),
                    ha="left" if data.mean[task] < edges[-1] / 2 else "right",
                )
            x = f"entropy of the {data.basis[task]} (nats; {edges[-1]:.2f} is even)"
            titled(axes, task, x, "share of examples")
            axes.set_xlim(0, edges[-1])
            axes.set_ylim(0, 1.15 * max(*data.entropy[task], 1e-9))
            as_percent(axes.yaxis)
    return figure


def mass(data: Sharpness) -> Figure:
    with canvas(len(data.mass), height=2.7) as (figure, grid):
        for task, axes in zip(data.mass, grid[0], strict=True):
            values, k = data.mass[task], data.kept[task]
            axes.plot(range(1, len(values) + 1), values, "o-", color=colour(0))
            axes.plot([k], [values[k - 1]], "o", color=colour(1), markersize=8)
            axes.annotate(
                f"k = {k}: {100 * values[k - 1]:.1f}%",
                (k, values[k - 1]),
                xytext=(8, -12),
                textcoords="offset points",
                color=colour(1),
            )
            titled(axes, task, "most probable experts", f"share of the {data.basis[task]}")
            axes.set_ylim(0, 1.04)
            whole_numbers(axes, range(1, len(values) + 1))
            as_percent(axes.yaxis)
    return figure


def likeness(data: Likeness) -> Figure:
    values = np.array(data.cosine, dtype=float)
    side = min(6.5, 1.6 + 0.3 * len(values))
    with canvas(height=max(2.6, side)) as (figure, grid):
        axes = grid[0][0]
        _heat(axes, values, ALIKE, numbers=values, digits=2, vmin=0.0, vmax=1.0)
        axes.set_aspect("equal")
        for a, b, _ in data.twins:
            for x, y in ((a, b), (b, a)):
                axes.plot(x, y, "s", markersize=15, markerfacecolor="none", color=colour(1))
        titled(axes, f"Cosine of outputs (framed: {TWINS} and more)", "expert", "expert")
        _tick_experts(axes.xaxis, len(values))
        _tick_experts(axes.yaxis, len(values))
    return figure


def _tick_experts(axis: Any, experts: int) -> None:
    if experts <= MOST_TICKS:
        axis.set_ticks(range(experts))


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
        light = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.5
        place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6.5}
        ink = "#111111" if light else "#fefefe"
        axes.text(column, row, f"{number:.{digits}f}", color=ink, **place)


def consistency(data: Consistency) -> Figure:
    with canvas(height=2.8) as (figure, grid):
        axes = grid[0][0]
        for number, (task, same) in enumerate(data.same.items()):
            style = {"color": colour(number), "marker": MARKS[number % len(MARKS)]}
            axes.plot(data.epochs, same, label=task, **style)
            axes.plot(data.epochs, data.chance[task], ":", color=colour(number), linewidth=1.2)
        axes.plot([], [], ":", color=QUIET, linewidth=1.2, label="by chance")
        titled(axes, "Examples that keep their top expert", "epoch", "same as an epoch before")
        axes.set_ylim(0, 1.04)
        whole_numbers(axes, data.epochs)
        as_percent(axes.yaxis)
        axes.legend(loc="lower right")
    return figure


MARKS = "os^D"


def roc(data: Roc) -> Figure:
    with canvas(height=3.9) as (figure, grid):
        axes = grid[0][0]
        axes.plot([0, 1], [0, 1], "--", color=QUIET, linewidth=1)
        axes.plot(data.false_positive, data.true_positive, color=colour(0))
        axes.annotate(f"AUC {data.auc:.4f}", (0.62, 0.3), fontsize=12, color=colour(0))
        axes.annotate("guessing", (0.72, 0.66), rotation=45, color=QUIET, fontsize=8)
        titled(axes, data.task, "false positive rate", "true positive rate")
        axes.set_aspect("equal")
        axes.set_xlim(-0.01, 1.01)
        axes.set_ylim(-0.01, 1.01)
    return figure


def calibration(data: Reliability) -> Figure:
    with canvas(height=3.9) as (figure, grid):
        axes = grid[0][0]
        axes.plot([0, 1], [0, 1], "--", color=QUIET, linewidth=1, label="perfect")
        for number, (name, curve) in enumerate(data.curves.items()):
            sizes = 8 + 120 * np.asarray(curve["rows"]) / max(data.rows, 1)
            label = f"{name}: off by {100 * data.error[name]:.1f} points"
            points = curve["predicted"], curve["observed"]
            style = {"color": colour(number), "linewidth": 1.2, "label": label}
            axes.plot(*points, marker=MARKS[number], markersize=4, **style)
            axes.scatter(*points, s=sizes, color=colour(number), alpha=0.35, linewidths=0)
        titled(axes, data.task, "mean predicted probability", "share of positives")
        axes.set_aspect("equal")
        axes.set_xlim(-0.01, 1.01)
        axes.set_ylim(-0.01, 1.01)
        axes.legend(loc="upper left")
    return figure


def error(data: list[ErrorBy]) -> Figure:
    with canvas(len(data), height=2.9) as (figure, grid):
        for axes, groups in zip(grid[0], data, strict=True):
            places = range(len(groups.value))
            margins = np.nan_to_num(np.asarray(groups.margin, dtype=float))
            axes.errorbar(places, groups.value, margins, fmt="o-", color=colour(0), capsize=3)
            ends = zip(groups.low, groups.high, strict=True)
            labels = [f"{a}" if a == b else f"{a}-{b}" for a, b in ends]
            axes.set_xticks(list(places), labels, rotation=30, ha="right")
            titled(axes, groups.by, "watched rows in training", f"{groups.metric} of {groups.task}")
            axes.grid(axis="x", visible=False)
        if len({groups.metric for groups in data}) == 1 and len(data) > 1:
            low = min(axes.get_ylim()[0] for axes in grid[0])
            high = max(axes.get_ylim()[1] for axes in grid[0])
            room = 0.04 * (high - low)
            for axes in grid[0]:
                axes.set_ylim(low - room, high + room)
    return figure


def expert_map(data: ExpertMap) -> Figure:
    x, y = np.asarray(data.x), np.asarray(data.y)
    with canvas(len(data.top), height=4.1) as (figure, grid):
        for task, axes in zip(data.top, grid[0], strict=True):
            top = np.asarray(data.top[task])
            for e in np.unique(top):
                mine = top == e
                look = {"color": colour(int(e)), "marker": marker(int(e))}
                look = {"color": LINE, "marker": "."} if e < 0 else look
                axes.scatter(
                    x[mine], y[mine], s=7, alpha=0.7, linewidths=0, rasterized=True, **look
                )
            for e in (e for e in np.unique(top) if e >= 0):
                middle = np.median(x[top == e]), np.median(y[top == e])
                box = {"boxstyle": "round,pad=0.2", "fc": "#fefefe", "ec": colour(int(e))}
                axes.annotate(
                    str(e), middle, ha="center", va="center", fontsize=8, bbox=box, color="#111111"
                )
            titled(axes, task, f"{data.projection} 1", f"{data.projection} 2")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.grid(False)
        seen = sorted({e for top in data.top.values() for e in top if e >= 0})
        if len(seen) <= MOST_TICKS:
            dots = [
                Line2D([], [], color=colour(e), marker=marker(e), linestyle="none", label=str(e))
                for e in seen
            ]
            figure.legend(handles=dots, loc="outside lower center", ncols=16, columnspacing=1.0)
    return figure


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
        _tick_experts(axes.yaxis, len(values))
    return figure
