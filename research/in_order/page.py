"""The tables of research/in-order.md from the rows."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "in-order.md"
BEGIN, END = "<!-- table -->", "<!-- /table -->"
FIGURES = ("ndcg", "hit_rate", "ndcg_shuffled", "hit_rate_shuffled", "auc", "mse", "loss")
HEAD = (
    "| configuration | router | seeds | NDCG@10 | HR@10 | NDCG@10, ties shuffled | HR@10, ties "
    "shuffled | AUC | MSE | loss | minutes |"
)


def write_page(rows: Path, page: Path = PAGE) -> None:
    """Replace what stands between the marks. Raises ValueError without them."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{page} must have {BEGIN} and {END}; add them")
    with rows.open(newline="", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    text = "\n".join([BEGIN, "", HEAD, "|---" * 11 + "|", *_table(lines), "", END])
    page.write_text(before + text + after, encoding="utf-8")


def _table(rows: list[dict[str, str]]) -> Iterator[str]:
    for key in sorted({(one["config"], one["router"]) for one in rows}):
        own = [one for one in rows if (one["config"], one["router"]) == key]
        minutes = [float(one["minutes"]) for one in own if one["minutes"]]
        spent = f"{statistics.median(minutes):.0f}" if minutes else ""
        cells = [_spread([float(one[name]) for one in own if one[name]]) for name in FIGURES]
        yield "| " + " | ".join([f"`{key[0]}`", key[1], str(len(own)), *cells, spent]) + " |"


def _spread(values: list[float]) -> str:
    """Mean and, of several, standard deviation."""
    if not values:
        return ""
    mean = f"{statistics.mean(values):.4f}"
    return mean if len(values) == 1 else f"{mean} +- {statistics.stdev(values):.4f}"
