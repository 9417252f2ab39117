"""A log with two tasks that compete for embeddings which are too narrow for both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from data_prep import table

USERS, ITEMS, ROWS = 150, 150, 16_000
NOISE = 0.5
FRACTIONS = "0.7,0.15,0.15"


def write_log(out: Path, seed: int = 0) -> None:
    """Prepare the log in the folder `out`.

    Each user and item has two independent numbers, of which each task asks for one: the logit of
    `like` is twice the sum of the first, `score` the sum of the second plus noise of standard
    deviation NOISE. An embedding of width 1 holds one of the two numbers.
    """
    draw = np.random.default_rng(seed)
    user_R, item_R = draw.integers(USERS, size=ROWS), draw.integers(ITEMS, size=ROWS)
    sum_R2 = draw.normal(size=(USERS, 2))[user_R] + draw.normal(size=(ITEMS, 2))[item_R]
    like_R = draw.random(ROWS) < 1 / (1 + np.exp(-2 * sum_R2[:, 0]))
    score_R = sum_R2[:, 1] + NOISE * draw.normal(size=ROWS)
    frame = pd.DataFrame(
        {"user": user_R, "item": item_R, "like": like_R.astype(int), "score": score_R}
    )
    frame = frame.drop_duplicates(["user", "item"])
    file = out.with_suffix(".csv")
    frame.to_csv(file, index=False)
    tasks = ["like:binary=like", "score:regression=score"]
    table.prepare(out, user="user", item="item", tasks=tasks, input=file, fractions=FRACTIONS)
