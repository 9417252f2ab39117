"""The style of all figures, and their SVG, PNG and inline SVG.

The same data give the same bytes: no dates, fixed ids, the Agg renderer, and the font that comes
with matplotlib drawn as outlines. Colours of Okabe and Ito (2008), told apart by colour-blind
readers; experts differ by marker and number besides.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8c6d46", "#6f6fb0"]
MARKERS = "os^DvPX*<>"
PAPER, INK, QUIET, LINE = "#ffffff", "#23282b", "#5d666a", "#d9d6cd"
THEME = {PAPER: "var(--card)", INK: "var(--ink)", QUIET: "var(--quiet)", LINE: "var(--line)"}
"""Colours that follow the page's light or dark theme -> what stands for them in the page."""
STYLE: dict[str, Any] = {
    "svg.hashsalt": "recsys-moe",
    "svg.fonttype": "path",
    "text.parse_math": False,  # a $ in a name is a $
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
}
PNG_DPI = 150
WIDTH = 8.0
"""Inches."""
ABREAST = 3
"""Panels in a row."""
LETTERS = 66
"""Of a bold title that fit into WIDTH, the numbers of the axes left out."""
FLAT = 2.0
"""Times by which the first epoch may stretch the range of the later ones before it is left out."""


@dataclass(frozen=True)
class Image:
    """One figure in three forms."""

    svg: bytes
    png: bytes
    inline: str
    """An `svg` element without an outside reference; its ids begin with the figure's name."""


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def marker(number: int) -> str:
    return MARKERS[number // len(COLOURS) % len(MARKERS)]


def _styled() -> AbstractContextManager[None]:
    """Our style over matplotlib's defaults, whatever the user's own settings are."""
    style: dict[Any, Any] = {k: v for k, v in matplotlib.rcParamsDefault.items() if k != "backend"}
    return matplotlib.rc_context(style | STYLE)


@contextmanager
def canvas(columns: int = 1, rows: int = 1, height: float = 3.0) -> Iterator[tuple[Figure, Any]]:
    """A figure with a grid of axes (rows, columns) in our style. `height` in inches."""
    with _styled():
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False)


@contextmanager
def panels(count: int, height: float) -> Iterator[tuple[Figure, list[Axes]]]:
    """Axes in rows of at most ABREAST; `height` of a row in inches."""
    rows = -(-count // ABREAST)
    with canvas(-(-count // rows), rows, height * rows) as (figure, grid):
        for spare in grid.flatten()[count:]:
            spare.remove()
        yield figure, list(grid.flatten()[:count])


def render(name: str, draw: Callable[[Any], Figure], data: Any) -> Image:
    """Draw `data` and write it out. `name`: letters, digits, `-`, `_` and `.`."""
    with _styled(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # drawn as a box
        figure = draw(data)
        svg, png = io.BytesIO(), io.BytesIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(svg, format="svg", metadata=nothing, dpi=PNG_DPI)
        figure.set_layout_engine("none")  # what the first drawing has laid out stays
        figure.savefig(png, format="png", metadata={"Software": None}, dpi=PNG_DPI)
    return Image(svg.getvalue(), png.getvalue(), inline_svg(svg.getvalue().decode(), name))


def inline_svg(text: str, name: str) -> str:
    """An SVG file -> an element for the page: themed, with ids of its own, without metadata."""
    text = text[text.index("<svg") :]
    # Comments hold the names of tasks; width and height of the `svg` come first.
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' (width|height)="[^"]*"', "", text, count=2)
    text = text.replace("<svg ", '<svg aria-hidden="true" focusable="false" ', 1)
    for before in (' id="', "url(#", 'href="#'):
        text = text.replace(before, f"{before}{name}-")
    for fixed, themed in THEME.items():
        text = text.replace(f": {fixed}", f": {themed}")
    return text


def titled(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def headed(axes: Axes, title: str) -> None:
    """A title that is broken where its panel ends, also within a long name."""
    specification = axes.get_subplotspec()
    columns = specification.get_gridspec().ncols if specification else 1
    axes.set_title(textwrap.fill(title, LETTERS // columns))


def in_common(figure: Figure, x: str, y: str = "") -> None:
    """Common axis labels of all panels; separate ones would be cut."""
    figure.supxlabel(x, fontsize=9)
    if y:
        figure.supylabel(y, fontsize=9)


def legend_above(figure: Figure, axes: Axes) -> None:
    """What the lines of `axes` mean, where it covers none of them."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4)


def later_range(curves: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Where the curves run from their second epoch on, with a margin.

    None where the first epoch does not stretch that range FLAT times, or too few epochs are there.
    """
    later = [value for curve in curves for value in curve[1:] if math.isfinite(value)]
    first = [curve[0] for curve in curves if curve and math.isfinite(curve[0])]
    if max(map(len, curves), default=0) < 3 or not (first and later):
        return None
    low, high = min(later), max(later)
    whole = max(high, *first) - min(low, *first)
    margin = 0.1 * (high - low)
    return (low - margin, high + margin) if whole > FLAT * (high - low) > 0 else None


def focus(axes: Axes, epoch: int, values: Sequence[float], ends: tuple[float, float]) -> None:
    """Leave what is beyond `ends` out; a corner says what is at `epoch`."""
    axes.set_ylim(*ends)
    style: dict[str, Any] = {"fontsize": 7.5, "color": QUIET, "transform": axes.transAxes}
    style["bbox"] = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 1}
    above = [f"{value:.4g}" for value in values if value > ends[1]]
    below = [f"{value:.4g}" for value in values if value < ends[0]]
    for outside, where, height, entity in (
        (above, "above", 1, "top"),
        (below, "below", 0, "bottom"),
    ):
        if outside:
            text = f"epoch {epoch} {where}: {' and '.join(outside)}"
            axes.text(0.98, height, text, ha="right", va=entity, **style)


def as_percent(axis: Any, digits: int = 0) -> None:
    """Ticks of shares as percentages."""
    axis.set_major_formatter(lambda value, _: f"{100 * value:.{digits}f}%")


def whole_numbers(axis: Any, values: Sequence[int], most: int = 8) -> None:
    """Ticks at the ascending whole numbers `values`, or at some of them where they are many.

    A few stand where they are: a locator would divide the room around a single epoch.
    """
    if len(values) <= most:
        axis.set_ticks(values)
    else:
        axis.set_major_locator(MaxNLocator(integer=True, nbins=most))
