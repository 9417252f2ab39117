"""Is a contender ahead of what needs no model by more than chance? By log, over its seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from math import sqrt
from statistics import mean, variance

BOUNDS = {"auc": "popularity_auc", "mse": "user_item_mse", "ndcg": "popularity_ndcg"}
"""Of each figure, that of what needs no model."""
LOWER = ("mse",)
CHANCE = 1.96
"""Standard errors that a difference has by chance in 19 of 20 cases."""
Row = Mapping[str, str]


def standing(rows: list[Row], figure: str) -> tuple[float, float]:
    """By how much the mean over seeds is better than the bound, and the standard error of that.

    Seeds have the test rows in common, so the error of these does not fall with seeds; that of the
    seeds, their variance over their number, comes on top.
    """
    sign = -1 if figure in LOWER else 1
    by = [sign * (float(row[figure]) - float(row[BOUNDS[figure]])) for row in rows]
    of_rows = mean(float(row[f"{figure}_error"]) ** 2 for row in rows)
    of_seeds = variance(by) / len(by) if len(by) > 1 else 0.0
    return mean(by), sqrt(of_rows + of_seeds)


def word(by: float, error: float) -> str:
    """`ahead`, `level` or `behind`."""
    if abs(by) <= CHANCE * error:
        return "level"
    return "ahead" if by > 0 else "behind"


def table(rows: Iterable[Row], contenders: Iterable[str]) -> str:
    """As Markdown: of each figure the mean, the bound in brackets, and the difference."""
    found = defaultdict(list)
    for row in rows:
        found[row["log"], row["contender"]].append(row)
    lines = ["| log | settings | seeds | AUC | MSE | NDCG@10 |", "|---|---|---|---|---|---|"]
    for log in dict.fromkeys(log for log, _ in found):
        for name in contenders:
            if some := found.get((log, name)):
                cells = " | ".join(_cells(some))
                lines.append(f"| {log} | {name} | {len(some)} | {cells} |")
    return "\n".join(lines)


def _cells(rows: list[Row]) -> Iterator[str]:
    for figure, bound in BOUNDS.items():
        if not rows[0].get(f"{figure}_error"):
            yield ""
            continue
        by, error = standing(rows, figure)
        own, other = mean(float(row[figure]) for row in rows), float(rows[0][bound])
        yield f"{own:.4f} ({other:.4f}) {by:+.4f} +- {error:.4f}, {word(by, error)}"
