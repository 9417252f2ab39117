"""Do a recipe's figures hold on other draws of split and negatives? No benchmark of speed.

    python benchmarks/draws.py CHOSEN.runs.csv ANOTHER.runs.csv ANOTHER.runs.csv ...

Each file has the runs of one recipe on one draw (`runs.csv` of `compare`); the first is of the draw
on which the recipe was chosen. What a draw does to a figure is more than what a seed of training
does, so draws count and not seeds: of the means over seeds, s is the standard deviation over all
draws, and the first is off the mean of the n others by so many standard errors s sqrt(1 + 1 / n).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import common
import pandas as pd

FIGURES = ("loss", "watch.auc", "rating.mse", "ranking.ndcg", "ranking.gauc")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("chosen", type=Path)
    parser.add_argument("others", type=Path, nargs="+")
    options = parser.parse_args(argv)
    tables = [pd.read_csv(path) for path in (options.chosen, *options.others)]
    rows = [
        {"figure": name, **standing([table[name].mean() for table in tables])}
        for name in FIGURES
        if all(name in table for table in tables)
    ]
    columns = {"figure": "{figure}", "chosen": "{chosen:.4f}", "others": "{others:.4f}"}
    common.table({**columns, "s": "{s:.4f}", "standard errors": "{errors:.1f}"}, rows)
    common.report("draws", {"rows": rows, "draws": len(tables)})


def standing(means: Sequence[float]) -> dict[str, float]:
    """Where the first of the draws' means stands among the others; s is 0 where all are equal."""
    chosen, *others = means
    s, middle = float(pd.Series(means).std()), sum(others) / len(others)
    error = s * (1 + 1 / len(others)) ** 0.5
    off = abs(chosen - middle) / error if error else 0.0
    return {"chosen": chosen, "others": middle, "s": s, "errors": off}


if __name__ == "__main__":
    main()
