"""The CSV of finished rows: what a session goes on from."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from recsys_moe.errors import ConfigError
from research.accuracy.peers import LOWER_IS_BETTER, PEERS, Peer

FIGURES = (
    *("auc", "bce", "mse", "loss", "ndcg", "recall", "mrr", "hit_rate", "gauc", "coverage"),
    "popularity",
)


@dataclass(frozen=True)
class Row:
    """What one fit reached on one split. A peer that does not do a task has no such figure."""

    peer: str
    split: str
    seed: int
    settings: str
    """JSON."""
    figures: dict[str, float | None]
    minutes: float | None
    """Of processor time for one fit; of our runs, of the wall clock, None where unknown."""
    versions: str
    data: str
    commit: str
    date: str

    @property
    def key(self) -> tuple[str, ...]:
        return (self.peer, self.split, str(self.seed), self.settings, self.data)


PLAIN = [field.name for field in fields(Row) if field.name != "figures"]


def settings_text(settings: dict[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def read(path: Path) -> list[Row]:
    """Empty where there is no such file; raises ConfigError for one of another kind."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        if absent := {*PLAIN, *FIGURES} - {*(lines.fieldnames or ())}:
            raise ConfigError(
                f"{path} must hold rows of research.accuracy, got none of the columns "
                f"{', '.join(sorted(absent))}; name another file"
            )
        return [_row(entry) for entry in lines]


def _row(entry: dict[str, str]) -> Row:
    figures = {name: float(entry[name]) if entry[name] else None for name in FIGURES}
    plain: dict[str, Any] = {name: entry[name] for name in PLAIN}
    minutes = entry["minutes"]
    plain |= {"seed": int(entry["seed"]), "minutes": float(minutes) if minutes else None}
    return Row(figures=figures, **plain)


def add(path: Path, row: Row) -> None:
    """As one line at the end, the heading before the first one."""
    begins = not path.is_file()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if begins:
            writer.writerow([*PLAIN[:4], *FIGURES, *PLAIN[4:]])
        figures = [_cell(row.figures.get(name)) for name in FIGURES]
        plain = [getattr(row, name) for name in PLAIN]
        writer.writerow([*plain[:4], *figures, *plain[4:]])


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"


def trials(rows: Iterable[Row], name: str) -> list[Row]:
    """Those rows of a peer that choose its settings."""
    return [row for row in rows if (row.peer, row.split) == (name, "val")]


def chosen(trials: Sequence[Row], peer: Peer) -> Row:
    """The first of the best by `peer.by`; without that figure a trial is the last."""
    sign = 1 if peer.by in LOWER_IS_BETTER else -1

    def place(row: Row) -> float:
        value = row.figures[peer.by]
        return math.inf if value is None else sign * value

    return min(trials, key=place)


def tested(rows: Iterable[Row]) -> list[Row]:
    """Rows of the test split; of a peer those of the settings that its trials choose, or, where it
    has none here, those of the last row: where others were added after a session, what they
    replaced is no longer among them."""
    rows = list(rows)
    test = [row for row in rows if row.split == "test"]
    best = {row.peer: row.settings for row in test if row.peer in PEERS}
    for name, peer in PEERS.items():
        if tried := trials(rows, name):
            best[name] = chosen(tried, peer).settings
    return [row for row in test if best.get(row.peer, row.settings) == row.settings]
