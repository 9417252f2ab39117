"""Pictures of the studies' numbers, in the style of `report`. Same numbers, same bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from recsys_moe.files import replacing, write_json
from recsys_moe.lab.report.plots import canvas, colour, marker, render, titled
from research.paper.bias import Bias
from research.paper.curve import Point, band, tested
from research.paper.figures import Balance, Histogram
from research.plain_log import plain_log


def save(out: Path, name: str, draw: Callable[[Any], Figure], data: Any, *, numbers: Any) -> None:
    """OUT/NAME.svg and .png of `draw(data)`, and the numbers behind them as OUT/NAME.json."""
    out.mkdir(parents=True, exist_ok=True)
    image = render(name, draw, data)
    write_json(out / f"{name}.json", numbers)
    for ending, content in (("svg", image.svg), ("png", image.png)):
        with replacing(out / f"{name}.{ending}") as stream:
            stream.write(content)


def draw_balances(balances: Sequence[Balance]) -> Figure:
    """Test loss against evenness of the load, one panel per task."""
    tasks = list(dict.fromkeys(balance.task for balance in balances))
    with canvas(len(tasks), height=3.4) as (figure, grid):
        for axes, task in zip(grid[0], tasks, strict=True):
            for place, balance in enumerate(b for b in balances if b.task == task):
                _point(axes, balance, place)
            axes.axvline(0.99, color="0.6", linewidth=0.8, linestyle=":")
            titled(axes, task, "evenness of the load (1 = even)", "loss")
        grid[0][-1].legend()
    return figure


def _point(axes: Axes, balance: Balance, place: int) -> None:
    x, y = balance.evenness, balance.loss
    axes.errorbar(
        x.mean,
        y.mean,
        xerr=x.standard_error,
        yerr=y.standard_error,
        color=colour(place),
        marker=marker(place),
        label=balance.contender,
        linestyle="none",
    )


def draw_histograms(histograms: Sequence[Histogram]) -> Figure:
    """A row per router, a column per task; sparse and dense inference over each other."""
    tasks = list(dict.fromkeys(h.task for h in histograms))
    routers = list(dict.fromkeys(h.router for h in histograms))
    with canvas(len(tasks), len(routers), height=2.6 * len(routers)) as (figure, grid):
        for row, router in zip(grid, routers, strict=True):
            for axes, task in zip(row, tasks, strict=True):
                for h in (h for h in histograms if (h.router, h.task) == (router, task)):
                    label = f"{h.inference}, mean {h.mean:.4f}"
                    axes.stairs(
                        h.shares, h.edges, color=colour(h.inference == "dense"), label=label
                    )
                titled(axes, f"{router}, {task}", "loss of a row", "share of rows")
                axes.set_yscale("log")
                plain_log(axes.yaxis)
                axes.legend(title="inference")
    return figure


def draw_bias(biases: Sequence[Bias]) -> Figure:
    """A panel with replacement, as the paper's figure, and one without, as the router trains."""
    with canvas(2, height=3.2) as (figure, grid):
        for axes, replacement in zip(grid[0], (True, False), strict=True):
            _bars(axes, [b for b in biases if b.replacement == replacement])
            drawn = "with" if replacement else "without"
            titled(axes, f"drawn {drawn} replacement", "", "bias |E[w] - g|")
            axes.legend(title="strategy")
    return figure


def _bars(axes: Axes, biases: Sequence[Bias]) -> None:
    shapes = list(dict.fromkeys(b.shape for b in biases))
    strategies = list(dict.fromkeys(b.strategy for b in biases))
    width = 0.8 / len(strategies)
    for place, strategy in enumerate(strategies):
        offset = (place - (len(strategies) - 1) / 2) * width
        heights = [b.bias for b in biases if b.strategy == strategy]
        x = [i + offset for i in range(len(shapes))]
        axes.bar(x, heights, width, color=colour(place), label=f"({strategy})")
    axes.set_xticks(range(len(shapes)), shapes, rotation=30, ha="right")


def draw_tuning(curves: Mapping[str, Sequence[Point]]) -> Figure:
    """Mean test loss of the best of so many trials; the band is one standard deviation."""
    with canvas(height=3.6) as (figure, grid):
        axes = grid[0][0]
        for place, (router, points) in enumerate(curves.items()):
            band(axes, place, router, tested(points))
        titled(axes, "", "trials", "test loss of the best on validation")
        axes.set_xscale("log")
        plain_log(axes.xaxis)
        axes.legend()
    return figure
