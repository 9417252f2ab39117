"""A log of events in the order of time. Axes: N events, U users, I items."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

ML_1M_TIMES = "ratings_time.parquet"
ORDERS = ("log", "shuffle")
ML_1M_CUT = 978_130_092
"""The .9 quantile of the times of MovieLens-1M."""
CORE = 5
"""Events of an item at least."""


@dataclass(frozen=True)
class Log:
    """Events by user, then time; of equal times by the file's order or, shuffled, by chance."""

    user: np.ndarray
    """int64 (N,) from 0."""
    item: np.ndarray
    """int64 (N,) from 0."""
    rating: np.ndarray
    """float64 (N,)."""
    time: np.ndarray
    """int64 (N,), seconds."""

    @property
    def users(self) -> int:
        return int(self.user.max()) + 1

    @property
    def items(self) -> int:
        return int(self.item.max()) + 1

    @property
    def starts(self) -> np.ndarray:
        """(U + 1,): the first event of each user, and N."""
        return np.searchsorted(self.user, np.arange(self.users + 1))

    @property
    def is_last(self) -> np.ndarray:
        """bool (N,): the last event of its user."""
        return np.r_[self.user[1:] != self.user[:-1], True]

    def after(self, cut: int) -> np.ndarray:
        """bool (N,): later than `cut`."""
        return self.time > cut

    def strictly_before(self) -> np.ndarray:
        """(N,): the place of the first event of the same user at the same time."""
        new = (self.user[1:] != self.user[:-1]) | (self.time[1:] != self.time[:-1])
        place = np.arange(len(self.user))
        return np.maximum.accumulate(np.where(np.r_[True, new], place, 0))

    def taken(self, some: np.ndarray) -> Log:
        """The events `some`, bool (N,); users and items keep their numbers."""
        return Log(self.user[some], self.item[some], self.rating[some], self.time[some])


def read(folder: Path, *, order: str = "log", seed: int = 0, core: int = 0) -> Log:
    """MovieLens-1M with restored times, or MovieLens-100K.

    `core`: leaves out items with fewer events; every MovieLens user has 20.
    """
    if (folder / ML_1M_TIMES).is_file():
        frame = pd.read_parquet(
            folder / ML_1M_TIMES, columns=["user", "movie", "rating", "timestamp"]
        )
    else:
        frame = pd.read_csv(folder / "u.data", sep="\t", header=None)
    frame.columns = ["user", "item", "rating", "time"]
    if core:
        frame = frame[frame.groupby("item").user.transform("size") >= core]
    return ordered(frame, order, seed)


def ordered(frame: pd.DataFrame, order: str, seed: int) -> Log:
    """The log of a frame with the columns of `Log`, in the order of the file."""
    ties = np.arange(len(frame))
    if order == "shuffle":
        ties = np.random.default_rng(seed).permutation(ties)
    place = np.lexsort((ties, frame.time, frame.user))
    user, item = (pd.factorize(frame[name], sort=True)[0][place] for name in ("user", "item"))
    rating = frame.rating.to_numpy(np.float64)[place]
    return Log(user, item, rating, frame.time.to_numpy(np.int64)[place])


def newest_tenth(log: Log) -> int:
    """The last time before the newest tenth of the ratings."""
    time = np.sort(log.time)
    return int(time[len(time) * 9 // 10]) - 1
