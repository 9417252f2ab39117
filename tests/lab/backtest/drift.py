"""A log whose taste turns round: items that are liked before the turn are disliked after it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from recsys_moe import prepare

USERS, ITEMS, TURN = 40, 20, 160
ROWS, MINUTE = USERS * ITEMS, 60


def log() -> pd.DataFrame:
    """Each pair once, a minute apart: even items are clicked until row TURN, then odd ones."""
    rng = np.random.default_rng(0)
    pair, row = rng.permutation(ROWS), np.arange(ROWS)
    user, item = np.divmod(pair, ITEMS)
    is_clicked = (item % 2 == 0) ^ (row >= TURN) ^ (rng.random(ROWS) < 0.1)
    columns = {"user": user, "item": item, "clicked": is_clicked.astype(int), "time": MINUTE * row}
    return pd.DataFrame(columns)


def drifting(out: Path) -> Path:
    """A folder of the log."""
    how = {"timestamp": "time", "protocol": "time"}
    prepare(log(), user="user", item="item", out=out, tasks=["click:binary=clicked"], **how)
    return out
