"""The figure of slow_start.py: a panel per quantity, a line per variant, labelled at its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from recsys_moe.lab.report.plots import QUIET, canvas, colour
from research.plain_log import plain_log

PANELS = {
    "val/loss": ("Validation loss", None),
    "effective_experts.{task}": ("Experts that the gate considers", "linear"),
    "information.{task}": ("What a row tells the gate (nats)", "log"),
    "gate_dense_part.{task}": ("Gate gradient: mean draw / dense", "linear"),
    "logit_share.{task}": ("Share of the expert in the logit's variance", "log"),
    "expert_cosine": ("Cosine of two experts' outputs", "linear"),
}
"""Column of the CSV -> title and scale; None: of the losses that matter."""
WIDTH, HEIGHT, DPI = 12.0, 6.4, 95
"""Inches, and dots in each: pictures in docs/ are small."""
GAP = 0.062
"""Least distance of two labels, of the height of a panel."""


def draw(
    rows: Sequence[dict[str, Any]], names: Sequence[str], path: Path, task: str = "watch"
) -> None:
    """Write a PNG of the variants `names`. `rows` as in the CSV; what is missing is not drawn."""
    with canvas(3, 2, HEIGHT) as (figure, grid):
        figure.set_size_inches(WIDTH, HEIGHT)
        for axes, (column, (title, scale)) in zip(grid.flatten(), PANELS.items(), strict=True):
            ends = {}
            for number, name in enumerate(names):
                points = line(rows, name, column.format(task=task))
                if scale == "log":
                    points = [(x, y) for x, y in points if y > 0]
                if points:
                    axes.plot(*zip(*points, strict=True), color=colour(number), clip_on=False)
                    ends[name] = points[-1], colour(number)
            axes.set_title(title, fontsize=9.5)
            axes.set_xlabel("epoch", color=QUIET)
            _limit(axes, scale)
            label_ends(axes, ends)
        figure.savefig(path, dpi=DPI, metadata={"Software": None})


def line(rows: Sequence[dict[str, Any]], name: str, column: str) -> list[tuple[float, float]]:
    """(epoch, value) where there is one."""
    own = [(row["epoch"], row.get(column)) for row in rows if row["variant"] == name]
    return [(epoch, value) for epoch, value in own if isinstance(value, float) and value == value]


def _limit(axes: Axes, scale: str | None) -> None:
    axes.set_xlim(0, None)
    if scale is None:
        values = [y for each in axes.lines for y in each.get_ydata()]
        axes.set_ylim(min(values) - 0.005, min(max(values), min(values) + 0.12))
        for each in axes.lines:
            each.set_clip_on(True)
    else:
        axes.set_yscale(scale)
    if scale == "log":
        plain_log(axes.yaxis)


def label_ends(axes: Axes, ends: dict[str, tuple[tuple[float, float], str]]) -> None:
    """Names beside the last points, pushed apart where they would meet."""
    to_panel = axes.transData + axes.transAxes.inverted()
    places = {}
    for name, (point, _) in ends.items():
        across, up = to_panel.transform(point)
        places[name] = across, min(max(up, 0.0), 1.0)
    order = sorted(places, key=lambda name: places[name][1])
    for name, height in zip(order, apart([places[n][1] for n in order]), strict=True):
        axes.annotate(
            name, places[name], xytext=(1.04, height), xycoords="axes fraction",
            textcoords="axes fraction", color=ends[name][1], fontsize=8, va="center",
            arrowprops={"arrowstyle": "-", "color": ends[name][1], "lw": 0.5, "alpha": 0.6},
        )  # fmt: skip


def apart(heights: Sequence[float]) -> list[float]:
    """Ascending heights at least GAP from each other, within 0..1 where they fit."""
    placed: list[float] = []
    for height in heights:
        placed.append(max(height, placed[-1] + GAP) if placed else max(height, 0.0))
    top = 1.0
    for number in reversed(range(len(placed))):
        placed[number] = min(placed[number], top)
        top = placed[number] - GAP
    return placed
