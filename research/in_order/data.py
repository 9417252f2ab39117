"""The prepared folders of the study.

    python -m research.in_order.data --ml-1m FOLDER --ml-100k FOLDER --out DIR

FOLDER: of ratings_time.parquet (user, movie, rating, timestamp, time_rank), and of u.data.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from data_prep import movielens
from recsys_moe import prepare
from research.time_peers.log import CORE

CUT = {"protocol": "time", "fractions": "799841/999611,99885/999611,99885/999611"}
"""Test begins behind 978130092, the quantile .9 of the times."""
FOLDERS = {"ml-1m-last": {"protocol": "leave-last"}, "ml-1m-time": CUT}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("ml-1m", "ml-100k", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args(argv)
    log = core(pd.read_parquet(options.ml_1m / "ratings_time.parquet"))
    for name, split in FOLDERS.items():
        prepare(
            log,
            user="user",
            item="movie",
            time="timestamp",
            tasks={"watch": "binary", "rating": "regression=rating"},
            negatives="per-user",
            out=options.out / name,
            **split,
        )
    out = options.out / "ml-100k-time"
    movielens.prepare("100k", options.ml_100k, out, protocol="time")


def core(log: pd.DataFrame) -> pd.DataFrame:
    """Rows by user and then time, those of one second in the order of the log; items with few rows
    are left out."""
    many_N = log.groupby("movie").user.transform("size") >= CORE
    return log[many_N].sort_values(["user", "time_rank"], ignore_index=True)


if __name__ == "__main__":
    main()
