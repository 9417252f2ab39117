"""A comparison on a terminal: aligned tables that fit its width, then the notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from recsys_moe.lab.compare.results import Results
from recsys_moe.lab.compare.tables import Markup, cells_of, notes_of, title_of, weights_of

RICH = Markup(" +- ", lambda text: f"[bold]{text}[/bold]", escape)
GAP = 2
"""Blanks between columns."""


def show(results: Results, console: Console) -> None:
    """Columns that do not fit go to another table below, with the routers repeated."""
    console.print(title_of(results), highlight=False)
    for group in results.groups:
        console.print(f"\nTask weights: {weights_of(group)}\n", highlight=False)
        for table in _tables(cells_of(group, results.columns, RICH), console):
            console.print(table, end="\n\n")
    for note in notes_of(results):
        console.print(f"- {note}", highlight=False, markup=False)


def _tables(lines: Sequence[Sequence[str]], console: Console) -> Iterator[Table]:
    """`lines`: the header, then a line per router, whose first cell is its name."""
    names, *columns = zip(*lines, strict=True)
    widths = [max(len(console.render_str(cell)) for cell in column) for column in columns]
    left = console.width - max(len(console.render_str(name)) for name in names) - GAP
    while columns:
        fitting = max(1, sum(sum(widths[:n]) + GAP * n <= left for n in range(1, len(widths) + 1)))
        yield _table([names, *columns[:fitting]])
        columns, widths = columns[fitting:], widths[fitting:]


def _table(columns: Sequence[Sequence[str]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, GAP, 0, 0), show_edge=False)
    for number, (header, *_) in enumerate(columns):
        table.add_column(header, justify="right" if number else "left", overflow="fold")
    for line in zip(*(column[1:] for column in columns), strict=True):
        table.add_row(*line)
    return table
