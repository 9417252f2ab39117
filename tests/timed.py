"""Logs with times for tests: what a user does next follows from what they did last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from recsys_moe import prepare

USERS, ITEMS, STEPS = 60, 40, 24


def log(seed: int = 0) -> pd.DataFrame:
    """STEPS rows of each user, two in a second: most go on to the item three further on.

    Ratings are 4 or 5 of even items and 1 or 2 of odd ones.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for user in range(USERS):
        item, start, seen = int(rng.integers(ITEMS)), int(rng.integers(1000)), set()
        for step in range(STEPS):
            item = int(rng.integers(ITEMS)) if rng.random() < 0.1 else (item + 3) % ITEMS
            while item in seen:
                item = (item + 1) % ITEMS
            seen.add(item)
            rating = int(rng.integers(1, 3)) + 3 * (item % 2 == 0)
            rows.append((f"u{user}", f"i{item}", rating, 1_700_000_000 + start + 40 * (step // 2)))
    return pd.DataFrame(rows, columns=["user", "item", "rating", "time"])


def prepared(out: Path, protocol: str = "time") -> Path:
    """A folder of the log, with negatives."""
    prepare(
        log(),
        user="user",
        item="item",
        out=out,
        tasks=["watch:binary", "rating:regression=rating"],
        timestamp="time",
        negatives="per-user",
        protocol=protocol,
    )
    return out
