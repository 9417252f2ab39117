"""The logs of the studies, and how each is prepared from the raw files of MovieLens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

COLUMNS = ["user", "item", "rating", "timestamp"]


@dataclass(frozen=True)
class Log:
    """MovieLens-100K or -1M whole, or a table made from the ratings of some of 100K's users."""

    tasks: tuple[str, ...] = ("watch", "rating")
    users: int | None = None
    """How many, drawn at random; None: all."""
    raw: str = "ml-100k"


LOGS = {
    "ml-100k": Log(),
    "ml-1m": Log(raw="ml-1m"),
    "ml-100k-tasks1": Log(("watch",)),
    "ml-100k-tasks4": Log(("watch", "rating", "liked", "loved")),
    "ml-100k-users47": Log(users=47),
    "ml-100k-users150": Log(users=150),
}
"""By the names of their folders. 47 users have about 10^4 rows, 150 about 10^4.5, all 943 of 100K
10^5.3, ml-1m 10^6.3, negatives included. `liked`: 4 or 5 stars, `loved`: 5."""
WEIGHTS_OF = {1: "1", 2: "0.9,0.1", 4: "0.7,0.1,0.1,0.1"}
"""By the number of tasks."""
OPTIONS = {
    "watch": ["--task", "watch:binary"],
    "rating": ["--task", "rating:regression=rating"],
    "liked": ["--task", "liked:binary=liked"],
    "loved": ["--task", "loved:binary=loved"],
}


def prepare(name: str, source: Path, data: Path, command: Callable[..., object]) -> None:
    """Write `data`/`name` from the raw folder in `source`, which has ml-100k and ml-1m."""
    log = LOGS[name]
    out = data / name
    if log in (Log(), Log(raw="ml-1m")):
        variant = ["--variant", log.raw.removeprefix("ml-"), "--source", source / log.raw]
        command("prepare", "movielens", *variant, "--out", out)
        return
    file = data / f"{name}.csv"
    table_of(log, source / log.raw / "u.data").to_csv(file, index=False)
    tasks = [word for task in log.tasks for word in OPTIONS[task]]
    columns = ["--user", "user", "--item", "item", "--timestamp", "timestamp"]
    rule = ["--negatives", "per-user", "--protocol", "paper"]
    command("prepare", "table", "--input", file, *columns, *tasks, *rule, "--out", out)


def table_of(log: Log, file: Path) -> pd.DataFrame:
    """The ratings of the drawn users, in the order of the file."""
    table = pd.read_csv(file, sep="\t", names=COLUMNS)
    if log.users is not None:
        users = np.sort(table["user"].unique())
        drawn = np.random.default_rng(0).choice(users, log.users, replace=False)
        table = table[table["user"].isin(drawn)]
    return table.assign(liked=(table["rating"] >= 4).astype(int), loved=table["rating"] // 5)
