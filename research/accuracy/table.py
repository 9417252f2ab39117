"""The table of finished rows: mean and standard error over seeds, on the test split."""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from research.accuracy.finished import Row, tested, trials
from research.accuracy.peers import PEERS

COLUMNS = {
    "auc": ("watch AUC", 4),
    "mse": ("rating MSE", 4),
    "ndcg": ("NDCG@10", 4),
    "recall": ("recall@10", 4),
    "gauc": ("GAUC", 4),
    "coverage": ("coverage", 3),
    "loss": ("loss", 4),
}
WIDTH = 120
MARKS = ("<!-- peers -->", "<!-- /peers -->")


def markdown(rows: Iterable[Row]) -> str:
    """A table of the test rows, then what each peer was chosen as, of how many settings."""
    rows = list(rows)
    groups = _groups(tested(rows))
    headings = ["", "seeds", *(title for title, _ in COLUMNS.values()), "minutes"]
    lines = [headings, ["---"] * len(headings), *(_cells(rows) for rows in groups)]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    tried = {name: len({row.settings for row in trials(rows, name)}) for name in PEERS}
    chosen = "\n".join(line for group in groups for line in _chosen(group, tried))
    return f"{table}\n\n{chosen}\n"


def _groups(rows: list[Row]) -> list[list[Row]]:
    """Rows of one peer: ours in the order of the file, then the peers in that of their table."""
    names = list(dict.fromkeys(row.peer for row in rows))
    ours = [name for name in names if name not in PEERS]
    order = [*ours, *(name for name in PEERS if name in names)]
    return [[row for row in rows if row.peer == name] for name in order]


def _cells(rows: Sequence[Row]) -> list[str]:
    name = rows[0].peer
    figures = [_figure(rows, figure, digits) for figure, (_, digits) in COLUMNS.items()]
    known = [row.minutes for row in rows if row.minutes is not None]
    minutes = f"{statistics.mean(known):.2g}" if known else "-"
    title = PEERS[name].title if name in PEERS else f"**{name}**"
    return [title, str(len(rows)), *figures, minutes]


def _figure(rows: Sequence[Row], name: str, digits: int) -> str:
    values = [value for row in rows if (value := row.figures[name]) is not None]
    if not values:
        return "-"
    mean = f"{statistics.mean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} +- {statistics.stdev(values) / math.sqrt(len(values)):.{digits}f}"


def _chosen(rows: Sequence[Row], tried: dict[str, int]) -> list[str]:
    """Of a peer the settings and versions, of ours nothing. `tried`: how many settings, here."""
    peer = PEERS.get(rows[0].peer)
    if peer is None:
        return []
    settings = _plain(json.loads(rows[0].settings))
    count = tried[rows[0].peer]
    here = f"best of {count}" if count else "chosen on other data"
    how = f"{settings or 'no settings'}, {here}; {rows[0].versions}"
    return [textwrap.fill(f"- {peer.title}: {how}.", WIDTH, subsequent_indent="  ")]


def _plain(settings: dict[str, object]) -> str:
    flat: dict[str, object] = {}
    for name, value in settings.items():
        flat |= value if isinstance(value, dict) else {name: value}
    return ", ".join(f"{name} {value}" for name, value in flat.items())


def fill(page: Path, text: str) -> None:
    """Put it between the marks of a page; raises ValueError where it has none."""
    old = page.read_text(encoding="utf-8")
    before, mark, rest = old.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not (mark and end):
        raise ValueError(f"{page} needs a line {MARKS[0]} and a later line {MARKS[1]}")
    page.write_text(f"{before}{mark}\n{text}{end}{after}", encoding="utf-8")
