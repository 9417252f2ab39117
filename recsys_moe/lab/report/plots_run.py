"""Draws the figures of a run; every number comes from the data class that is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, TwoSlopeNorm
from matplotlib.figure import Figure

from recsys_moe.kinds import metric_title
from recsys_moe.lab.report import plots
from recsys_moe.lab.report.experts import TWINS, ExpertLoad, Likeness, Sharpness
from recsys_moe.lab.report.genres import GenreBreakdown
from recsys_moe.lab.report.importance import Importance
from recsys_moe.lab.report.learning import Consistency, LearningCurves
from recsys_moe.lab.report.plots import INK, MARKERS, QUIET, canvas, colour, headed, panels
from recsys_moe.lab.report.quality import ErrorBy, Reliability, Roc
from recsys_moe.lab.report.timelines import RoutingByEvents

ANNOTATED = 20
"""Rows up to which the cells of a heat map carry their number."""
MOST_TICKS = 64
"""Experts up to which each one has its tick."""
ALIKE = LinearSegmentedColormap.from_list("alike", ["#fbfaf6", "#56b4e9", "#0a3d62"])
LIFT = LinearSegmentedColormap.from_list("lift", ["#b35806", "#f7f4ec", "#0072b2"])
UNKNOWN = "#b9b6ad"


def learning(data: LearningCurves) -> Figure:
    with panels(1 + len(data.metrics) + len(data.factors), height=2.7) as (figure, grid):
        trained = f"training, of {data.trained_by}" if data.trained_by else "training"
        grid[0].plot(data.epochs, data.train_loss, "o-", color=colour(5), label=trained)
        shown = {
            f"Loss (best: epoch {data.best_epoch})": data.val_loss,
            **data.metrics,
            **data.factors,
        }
        for axes, (name, values) in zip(grid, shown.items(), strict=True):
            style, of = ("o-", 5) if name in data.factors else ("s-", 0)
            axes.plot(data.epochs, values, style, color=colour(of), label="validation")
            headed(axes, name)
            curves = [data.train_loss, values] if axes is grid[0] else [values]
            if ends := plots.later_range(curves):
                plots.focus(axes, data.epochs[0], [curve[0] for curve in curves], ends)
            axes.axvline(data.best_epoch, color=QUIET, linewidth=0.9, linestyle=":")
            plots.whole_numbers(axes.xaxis, data.epochs)
        plots.in_common(figure, "epoch")
        plots.legend_above(figure, grid[0])
    return figure


def load(data: ExpertLoad) -> Figure:
    """Bars of the visits per task; a dot where the first choices end."""
    experts = range(len(data.either))
    with panels(len(data.visits), height=1.2 + min(0.24 * len(experts), 16.0)) as (figure, grid):
        for (task, visits), axes in zip(data.visits.items(), grid, strict=True):
            first = data.first[task]
            _bars(axes, visits, color=[colour(1 if e in data.idle else 0) for e in experts])
            axes.plot(first, experts, "D", color=INK, markersize=3.5, linestyle="none")
            axes.axvline(data.even[task], color=QUIET, linestyle="--", linewidth=1)
            for e in data.idle:
                end = max(visits[e], first[e])
                axes.annotate(" idle", (end, e), va="center", color=colour(1))
            headed(axes, task)
            plots.whole_numbers(axes.yaxis, experts, MOST_TICKS)
            plots.as_percent(axes.xaxis)
        plots.in_common(figure, "share of examples that select the expert", "expert")
    return figure


def importance(data: Importance) -> Figure:
    """Bars of the mean rise per task, with the spread over the shuffles."""
    parts = data.parts
    with panels(len(data.rise), height=1.2 + min(0.3 * len(parts), 16.0)) as (figure, grid):
        for task, axes in zip(data.rise, grid, strict=True):
            means = [data.mean(task, part) for part in parts]
            spreads = [data.spread(task, part) for part in parts]
            _bars(axes, means, color=colour(0), xerr=spreads, ecolor=INK, capsize=3)
            axes.axvline(0, color=QUIET, linewidth=1)
            axes.set_yticks(range(len(parts)), parts)
            headed(axes, f"{task}: {metric_title(data.metric[task])} {data.before[task]:.4f}")
        plots.in_common(figure, "increase of the loss when shuffled")
    return figure


def _bars(axes: Axes, widths: Sequence[float], **style: Any) -> None:
    """Horizontal ones, the first on top."""
    axes.barh(range(len(widths)), widths, height=0.7, **style)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def entropy(data: Sharpness) -> Figure:
    edges = np.asarray(data.edges)
    with panels(len(data.entropy), height=2.6) as (figure, grid):
        for (task, shares), axes in zip(data.entropy.items(), grid, strict=True):
            axes.bar(edges[:-1], shares, np.diff(edges), align="edge", color=colour(0))
            axes.axvline(data.mean[task], color=colour(1), label="mean")
            headed(axes, f"{task}: mean {data.mean[task]:.2f}")
            axes.set_xlim(0, edges[-1])
            plots.as_percent(axes.yaxis)
        x = f"entropy of the {_basis(data)} (nats; {edges[-1]:.2f} is even)"
        plots.in_common(figure, x, "share of examples")
        plots.legend_above(figure, grid[0])
    return figure


def mass(data: Sharpness) -> Figure:
    with panels(len(data.mass), height=2.6) as (figure, grid):
        for (task, values), axes in zip(data.mass.items(), grid, strict=True):
            k, places = data.kept[task], range(1, len(values) + 1)
            axes.plot(places, values, "o-", color=colour(0))
            axes.plot([k], [values[k - 1]], "o", color=colour(1), markersize=8)
            headed(axes, f"{task}: {100 * values[k - 1]:.1f}% at k = {k}")
            axes.set_ylim(0, 1.04)
            plots.whole_numbers(axes.xaxis, places)
            plots.as_percent(axes.yaxis)
        plots.in_common(figure, "most probable experts", f"share of the {_basis(data)}")
    return figure


def _basis(data: Sharpness) -> str:
    return " or ".join(sorted(set(data.basis.values())))


def likeness(data: Likeness) -> Figure:
    values = np.array(data.cosine, dtype=float)
    experts = range(len(values))
    title = f"Cosine of outputs (framed: {TWINS} and more)"
    with _single(title, "expert", "expert", min(max(2.6, 1.6 + 0.3 * len(values)), 6.5)) as (
        figure,
        axes,
    ):
        _heat(axes, values, ALIKE, numbers=values, digits=2, vmin=0.0, vmax=1.0)
        axes.set_aspect("equal")
        for a, b, _ in data.twins:
            for x, y in ((a, b), (b, a)):
                axes.plot(x, y, "s", markersize=15, markerfacecolor="none", color=colour(1))
        plots.whole_numbers(axes.xaxis, experts, MOST_TICKS)
        plots.whole_numbers(axes.yaxis, experts, MOST_TICKS)
    return figure


@contextmanager
def _single(title: str, x: str, y: str, height: float) -> Iterator[tuple[Figure, Axes]]:
    """A figure of one pair of axes with their labels; `height` in inches."""
    with canvas(height=height) as (figure, grid):
        plots.titled(grid[0][0], title, x, y)
        yield figure, grid[0][0]


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
    title = "Examples that keep their top expert"
    with _single(title, "epoch", "same as in the epoch before", 2.8) as (figure, axes):
        for number, (task, same) in enumerate(data.same.items()):
            shape, ink = f"{MARKERS[number % len(MARKERS)]}-", colour(number)
            axes.plot(data.epochs, same, shape, color=ink, label=task)
            axes.plot(data.epochs, data.chance[task], ":", color=ink, linewidth=1.2)
        axes.plot([], [], ":", color=QUIET, linewidth=1.2, label="by chance")
        axes.set_ylim(0, 1.04)
        plots.whole_numbers(axes.xaxis, data.epochs)
        plots.as_percent(axes.yaxis)
        plots.legend_above(figure, axes)
    return figure


def roc(data: Roc) -> Figure:
    label = f"AUC {data.auc:.4f}"
    with _single(data.task, "false positive rate", "true positive rate", 3.9) as (figure, axes):
        axes.plot(data.false_positive, data.true_positive, color=colour(0), label=label)
        _diagonal(figure, axes, "random")
    return figure


def calibration(data: Reliability) -> Figure:
    labels = data.task, "mean predicted probability", "share of positives"
    with _single(*labels, 3.9) as (figure, axes):
        for number, (name, curve) in enumerate(data.curves.items()):
            sizes = 8 + 120 * np.asarray(curve["rows"]) / max(data.rows, 1)
            label = f"{name}: off by {100 * data.error[name]:.1f} points"
            points, ink = (curve["predicted"], curve["observed"]), colour(number)
            axes.plot(*points, marker=MARKERS[number], markersize=4, color=ink, label=label)
            axes.scatter(*points, s=sizes, color=ink, alpha=0.35, linewidths=0)
        _diagonal(figure, axes, "perfect")
    return figure


def _diagonal(figure: Figure, axes: Axes, label: str) -> None:
    """From (0, 0) to (1, 1) in a square of shares, with a legend for the curves above it."""
    axes.plot([0, 1], [0, 1], "--", color=QUIET, linewidth=1, label=label, zorder=1)
    axes.set(aspect="equal", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    plots.legend_above(figure, axes)


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
        plots.in_common(figure, "positives in training", data[0].metric)
    return figure


def by_events(data: RoutingByEvents) -> Figure:
    title, height = f"{data.task}: share of first choices", 2.0 + min(0.26 * len(data.share), 16.0)
    with _single(title, "events of the user before the row", "expert", height) as (figure, axes):
        share = np.array(data.share)
        worth_reading = np.where(share >= 0.005, share, np.nan)
        _heat(axes, share, ALIKE, numbers=worth_reading, digits=2, vmin=0, vmax=1)
        axes.set_xticks(range(len(data.groups)), data.groups)
        plots.whole_numbers(axes.yaxis, range(len(data.share)), MOST_TICKS)
    return figure


def genres(data: GenreBreakdown) -> Figure:
    """log2 of the lift, so that twice and half as often are equally far from the middle."""
    lift = np.array(data.lift, dtype=float)
    with np.errstate(divide="ignore"):
        values = np.clip(np.log2(lift), -2, 2)
    title, height = f"{data.task}: times as often as on average", 2.0 + min(0.26 * len(lift), 16.0)
    with _single(title, "", "expert", height) as (figure, axes):
        _heat(axes, values, LIFT, numbers=lift, digits=1, norm=TwoSlopeNorm(0, -2, 2))
        axes.set_xticks(range(len(data.genres)), data.genres, rotation=45, ha="right")
        plots.whole_numbers(axes.yaxis, range(len(lift)), MOST_TICKS)
    return figure
