"""Do a recipe's figures hold on other draws of split and negatives? No benchmark of speed.

    python -m research.draws CHOSEN.runs.csv ANOTHER.runs.csv ANOTHER.runs.csv ...

Each file has the runs of one recipe on one draw (`runs.csv` of `compare`); the first is of the draw
on which the recipe was chosen. What a draw does to a figure is more than what a seed of training
does, so draws count and not seeds: the first is off the mean of the n others by so many standard
errors s sqrt(1 + 1 / n), where s is the standard deviation of the others' means over seeds. p is of
the t-test with n - 1 degrees of freedom, two-sided: with few draws even large distances say little.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from scipy.stats import t as student

from benchmarks import common

FIGURES = ("loss", "watch.auc", "rating.mse", "ranking.ndcg", "ranking.gauc")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("chosen", type=Path)
    parser.add_argument("others", type=Path, nargs="+", help="at least two")
    parser.add_argument("--label", help="of these runs, where a file has those of others too")
    options = parser.parse_args(argv)
    if len(options.others) < 2:
        parser.error("others must be at least two files, got one; it alone has no deviation")
    try:
        tables = [of_one(path, options.label) for path in (options.chosen, *options.others)]
    except ValueError as error:
        parser.error(str(error))
    rows = [
        {"figure": name, **standing([table[name].mean() for table in tables])}
        for name in FIGURES
        if all(name in table for table in tables)
    ]
    columns = {"figure": "{figure}", "chosen": "{chosen:.4f}", "others": "{others:.4f}"}
    columns |= {"s": "{s:.4f}", "standard errors": "{errors:.1f}", "p": "{p:.2f}"}
    common.table(columns, rows)
    common.report("draws", {"rows": rows, "draws": len(tables)})


def of_one(path: Path, label: str | None) -> pd.DataFrame:
    """The runs of `label`, or of the only one. Raises ValueError where there is no such."""
    table = pd.read_csv(path)
    labels = sorted(table["label"].unique()) if "label" in table else []
    if label is None and len(labels) > 1:
        raise ValueError(f"{path} must have runs of one label, got {labels}; name one by --label")
    if label is not None and label not in labels:
        raise ValueError(f"--label must be of {path}, {labels}, got {label!r}")
    return table if label is None else table[table["label"] == label]


def standing(means: Sequence[float]) -> dict[str, float]:
    """Where the first of the draws' means stands beside the others, which differ."""
    chosen, *others = means
    s, middle = float(pd.Series(others).std()), sum(others) / len(others)
    off = abs(chosen - middle) / (s * (1 + 1 / len(others)) ** 0.5)
    p = 2 * float(student.sf(off, len(others) - 1))
    return {"chosen": chosen, "others": middle, "s": s, "errors": off, "p": p}


if __name__ == "__main__":
    main()
