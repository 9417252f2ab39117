"""What studies share: their finished runs, and tables of them in a page."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from examples.common.outputs import write

Row = Mapping[str, Any]


def finished_runs(out: Path) -> list[dict[str, Any]]:
    """The results below OUT/runs, each with the label of its contender, by label and seed."""
    runs = [
        {"label": path.parent.name.rpartition("-seed")[0], **json.loads(path.read_text())}
        for path in (out / "runs").glob("*/result.json")
    ]
    return sorted(runs, key=lambda run: (run["label"], run["seed"]))


def by_label(rows: Sequence[Row], order: Sequence[str] = ()) -> dict[str, list[Row]]:
    """The rows of each contender, in `order` and then by name."""
    rank = {label: place for place, label in enumerate(order)}
    labels = sorted({r["label"] for r in rows}, key=lambda name: (rank.get(name, len(rank)), name))
    return {label: [row for row in rows if row["label"] == label] for label in labels}


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """A table; the first line has the heads."""
    heads, *rest = lines
    rows = [heads, ["---"] * len(heads), *rest]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """A CSV that a study wrote, its numbers as numbers again and what is empty as None."""
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return [{name: _value(text) for name, text in row.items()} for row in rows]


def _value(text: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text or None


def fill(page: Path, mark: str, table: Callable[[list[dict[str, Any]]], str], source: Path) -> None:
    """Write the table of the CSV `source` between `<!-- mark -->` and `<!-- /mark -->`."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    after = rest.partition(end)[2]
    write(page, (before + begin + table(read_rows(source)) + end + after).encode())
