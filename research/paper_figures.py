"""The results of the MOESART paper for recommenders (Tables 1 and S4).

Mean and standard error over 50 runs of the tuned configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from recsys_moe.lab.compare.significance import Spread

RUNS = 50
TABLE = Path(__file__).with_suffix(".csv")
"""By data set, weights of watch and rating, and router; loss and AUC times 100, as printed."""


def paper_data(line: Mapping[str, str]) -> str:
    """The name of the data, empty unless a line of runs.csv is of the paper's data and split.

    Older files say so in a column, by the rows of the splits.
    """
    if "paper" in line:
        return line["paper"]
    is_papers = (line.get("protocol"), line.get("split")) == ("paper", "test")
    return line.get("data", "") if is_papers else ""


def figures_of(data: str, weights: dict[str, float]) -> dict[str, dict[str, Spread]]:
    """`loss`, `watch.auc` and `rating.mse` by router, in our units; `data`: see `paper_data`."""
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
