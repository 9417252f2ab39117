"""A log in time: ids in text, ratings 1 to 5, a few events of a user in the same second."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

START = 1_000_000_000


def live_log(users: int = 40, items: int = 30, seed: int = 0) -> pd.DataFrame:
    """`user,item,rating,time`: 3 to 25 events of each user; the next item follows the last one."""
    rng = np.random.default_rng(seed)
    parts = []
    for user in range(users):
        count = int(rng.integers(3, min(26, items)))
        first = int(rng.integers(items))
        item = (first + rng.permutation(items)[:count]) % items
        gap = rng.choice([0, 60, 3600, 86_400], size=count)
        time = START + int(rng.integers(30 * 86_400)) + gap.cumsum()
        rating = 1 + (item + user + rng.integers(2, size=count)) % 5
        columns = {"user": f"u{user}", "item": [f"i{one}" for one in item]}
        parts.append(pd.DataFrame({**columns, "rating": rating, "time": time}))
    return pd.concat(parts, ignore_index=True)


def live_data(folder: Path, protocol: str = "time") -> Path:
    """The log, prepared with drawn negatives and ratings."""
    from recsys_moe import prepare

    tasks = ["watch:binary", "rating:regression=rating"]
    names = {"user": "user", "item": "item", "time": "time"}
    out = folder / "data"
    prepare(live_log(), **names, tasks=tasks, out=out, protocol=protocol, negatives="per-user")
    return out
