"""Figures: OUT/NAME.svg and .png, with their numbers in OUT/NAME.json."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from examples.common.outputs import write, write_json


def draw_curves(out: Path, name: str, by_label: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Validation loss by epoch: the mean over the seeds, shaded from the least to the largest."""
    figure, axes = canvas(1)
    for label, runs in by_label.items():
        epochs = range(1, 1 + min(map(len, runs)))  # that all seeds have reached
        values = np.array([run[: len(epochs)] for run in runs])
        (line,) = axes[0].plot(epochs, values.mean(0), label=label)
        axes[0].fill_between(
            epochs, values.min(0), values.max(0), color=line.get_color(), alpha=0.2
        )
    titled(axes[0], "", "epoch", "validation loss")
    axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_yscale("log")
    save(figure, out, name, {"validation_loss": by_label})


def canvas(panels: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(1.5 + 4 * panels, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def titled(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend()


def save(figure: Figure, out: Path, name: str, numbers: Any) -> None:
    write_json(out / f"{name}.json", numbers)
    for ending, metadata in (("png", {}), ("svg", {"Date": None})):
        stream = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": name}):  # the same numbers, the same bytes
            figure.savefig(stream, format=ending, dpi=150, metadata=metadata)
        write(out / f"{name}.{ending}", stream.getvalue())
