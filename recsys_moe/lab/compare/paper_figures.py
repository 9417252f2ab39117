"""The paper's own results for recommenders, to stand beside ours (Tables 1 and S4).

Mean and standard error over 50 runs of the tuned configuration.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from recsys_moe.lab.compare.significance import Spread
from recsys_moe.schema import Schema

RUNS = 50
ROWS = {
    "movielens-1m": {"train": 1_574_602, "val": 224_944, "test": 199_950},
    "books": {"train": 389_706, "val": 83_509, "test": 83_509},
}
"""Rows per split of the data sets as the paper used them."""

TABLE = Path(__file__).with_suffix(".csv")
"""By data set, weights of watch and rating, and router; loss and AUC times 100, as printed."""


def paper_figures(
    schema: Schema, weights: dict[str, float], split: str
) -> dict[str, dict[str, Spread]]:
    """`loss`, `watch.auc` and `rating.mse` by router, in our units.

    Empty unless data, protocol, row counts, task weights and split are the paper's.
    """
    return figures_of(paper_data(schema, split), weights)


def paper_data(schema: Schema, split: str) -> str:
    """The name of the data, empty unless they, protocol, row counts and split are the paper's."""
    known = ROWS.get(schema.name)
    is_papers = schema.protocol == "paper" and known is not None and schema.rows == known
    return schema.name if is_papers and split == "test" else ""


def figures_of(data: str, weights: dict[str, float]) -> dict[str, dict[str, Spread]]:
    """As `paper_figures`, of what `paper_data` says."""
    table = pd.read_csv(TABLE, dtype=str)
    figures = table.set_index(["data", "watch", "rating", "router"]).astype(float)
    asked = (data, *(f"{weights.get(task, -1):g}" for task in ("watch", "rating")))
    return {
        router: {
            "loss": Spread(line.loss / 100, line.loss_error / 100, RUNS),
            "watch.auc": Spread(line.auc / 100, line.auc_error / 100, RUNS),
            "rating.mse": Spread(line.mse, line.mse_error, RUNS),
        }
        for (*mine, router), line in figures.iterrows()
        if tuple(mine) == asked
    }
