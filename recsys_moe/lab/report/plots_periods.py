"""Metrics by period, drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from recsys_moe.errors import ConfigError
from recsys_moe.files import check_output, replacing
from recsys_moe.kinds import metric_title
from recsys_moe.lab.report import plots
from recsys_moe.lab.report.plots import QUIET, colour, headed, panels

SHOWN = (
    *("normalised_entropy", "auc", "gauc", "pairwise", "log_loss", "accuracy", "deviance", "mse"),
    "predicted_over_observed",
)
ENDINGS = (".svg", ".png")
Metrics = Mapping[str, list[float]]
"""By the name of a panel, of each period; NaN where undefined."""


def over_time(periods: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The panels of `evaluate --periods`: those with a value in some period."""
    return {name: values for name, values in _columns(periods) if not all(map(math.isnan, values))}


def _columns(periods: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[float]]]:
    if not periods:
        return
    for task, metrics in periods[0]["tasks"].items():
        for metric in SHOWN:
            if metric in metrics:
                found = [one["tasks"][task][metric] for one in periods]
                values = [math.nan if value is None else value for value in found]
                yield f"{task} {metric_title(metric)}", values


def periods(data: Metrics) -> Figure:
    """A panel per task and metric; the dotted line is a perfect ratio, or the base rate's loss."""
    return by_line({"": data})


def by_line(lines: Mapping[str, Metrics]) -> Figure:
    """The same panels with a line for each name."""
    names = list(dict.fromkeys(name for data in lines.values() for name in data))
    with panels(len(names), height=2.5) as (figure, grid):
        for axes, name in zip(grid, names, strict=True):
            found = {label: data[name] for label, data in lines.items() if name in data}
            numbers = range(1, max(map(len, found.values())) + 1)
            for label, values in found.items():
                style = colour([*lines].index(label))
                axes.plot(numbers[: len(values)], values, "o-", color=style, label=label)
            if name.endswith(("over observed", "normalised entropy")):
                axes.axhline(1.0, color=QUIET, linewidth=0.9, linestyle=":")
            headed(axes, name)
            plots.whole_numbers(axes.xaxis, numbers)
        plots.in_common(figure, "period, in the order of time")
        if len(lines) > 1:
            plots.legend_above(figure, grid[0])
    return figure


def check_plot(path: Path) -> None:
    """Raises ConfigError for the name of no image, or where nothing can be written."""
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"--plot must end in {' or '.join(ENDINGS)}, got {path}")
    check_output(path, overwrite=True, option="--plot")


def save_plot(path: Path, found: Sequence[Mapping[str, Any]]) -> None:
    """Write the figure of `evaluate --periods` to `path`."""
    save_lines(path, {"": over_time(found)})


def save_lines(path: Path, lines: Mapping[str, Metrics]) -> None:
    """Write the figure of `by_line` to `path`."""
    image = plots.render("periods", by_line, lines)
    with replacing(path) as stream:
        stream.write(image.svg if path.suffix.lower() == ".svg" else image.png)
