"""Draws what predictions rest on; every number comes from importance.py."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from recsys_moe.lab.report.importance import Importance
from recsys_moe.lab.report.plots import INK, QUIET, colour, headed, in_common, panels


def importance(data: Importance) -> Figure:
    """Bars of the mean rise per task, with the spread over the shuffles."""
    parts = data.parts
    with panels(len(data.rise), height=1.2 + min(0.3 * len(parts), 16.0)) as (figure, grid):
        for task, axes in zip(data.rise, grid, strict=True):
            means = [data.mean(task, part) for part in parts]
            spreads = [data.spread(task, part) for part in parts]
            bars: dict[str, Any] = {"color": colour(0), "height": 0.7, "ecolor": INK, "capsize": 3}
            axes.barh(range(len(parts)), means, xerr=spreads, **bars)
            axes.axvline(0, color=QUIET, linewidth=1)
            axes.set_yticks(range(len(parts)), parts)
            axes.invert_yaxis()
            axes.grid(axis="y", visible=False)
            headed(axes, f"{task}: {data.metric[task].upper()} {data.before[task]:.4f}")
        in_common(figure, "rise of the loss when shuffled")
    return figure
