"""Peers without training on the future: popularity, EASE, co-occurrence, running means.

    python -m research.time_peers --ml-1m DIR --ml-100k DIR --csv research/results/time-peers.csv

`--ml-1m`: a folder with `ratings_time.parquet` (user, movie, rating, timestamp); `--ml-100k`: the
unpacked release; `--watch`: a prepared folder of `--protocol time`, for AUC on its test rows,
sampled negatives included. Minutes on one thread; see research/time-peers.md.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from research.time_peers import lists, ratings, watch
from research.time_peers.lists import Carried
from research.time_peers.log import CORE, ML_1M_CUT, ORDERS, Log, newest_tenth, read

HALF_LIVES = (1, 7, 30)
FIGURES = ("hit_rate@10", "ndcg@10", "mse", "mse of new users", "auc")
COLUMNS = ("data", "protocol", "tie_rule", "peer", "rows", *FIGURES)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="research.time_peers", description=__doc__)
    parser.add_argument("--ml-1m", type=Path)
    parser.add_argument("--ml-100k", type=Path)
    parser.add_argument("--watch", type=Path, action="append", default=[])
    parser.add_argument("--csv", type=Path, required=True)
    options = parser.parse_args(argv)
    rows = []
    for row in all_rows(options):
        print(*row.values(), flush=True)
        rows.append(row)
    with options.csv.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def all_rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of the CSV, as they are found."""
    for name, folder in (("ml-1m", options.ml_1m), ("ml-100k", options.ml_100k)):
        if folder:
            yield from measured(name, folder)
    for folder in options.watch:
        for peer, auc, rows in watch.popularity_auc(folder):
            yield line((folder.name, "test split", "-", peer), rows, {"auc": auc})


def measured(data: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Every figure of a data set."""
    log = read(folder)
    cut = ML_1M_CUT if data == "ml-1m" else newest_tenth(log)
    yield from of_ratings(log, cut, data)
    for order in ORDERS:
        log = read(folder, order=order, core=CORE)
        yield from of_lists(log, cut, data, order)


def of_ratings(log: Log, cut: int, data: str) -> Iterator[dict[str, Any]]:
    """MSE after the cut, of all users and of those who come after it."""
    test = log.after(cut)
    new = test & (np.bincount(log.user[~test], minlength=log.users)[log.user] == 0)
    for peer, said in ratings.predictions(log, ~test).items():
        name, _, rule = peer.partition(" / ")
        error_N = np.square(said - log.rating)
        found = {"mse": error_N[test].mean()}
        if new.any():
            found["mse of new users"] = error_N[new].mean()
        yield line((data, "cut, ratings", rule or "-", name), int(test.sum()), found)


def of_lists(log: Log, cut: int, data: str, order: str) -> Iterator[dict[str, Any]]:
    """Hit rate and NDCG@10 of the three protocols."""
    after = log.after(cut)
    protocols = {
        "leave-last": (log.is_last, ~log.is_last),
        "cut, last": (after & log.is_last, ~after),
        "cut, successive": (after, ~after),
    }
    fitted: dict[bytes, dict[str, Any]] = {}
    for protocol, (ranked, train) in protocols.items():
        key = train.tobytes()
        if key not in fitted:
            fitted[key] = carried_peers(log.taken(train), log.items)
        for peer, rank_N in peer_ranks(log, ranked, train, fitted[key]):
            yield line((data, protocol, order, peer), len(rank_N), lists.figures(rank_N))


def peer_ranks(
    log: Log, ranked: np.ndarray, train: np.ndarray, carried: dict[str, Any]
) -> Iterator[tuple[str, np.ndarray]]:
    """The ranks of the events `ranked` by each peer."""
    counts_I = np.bincount(log.item[train], minlength=log.items)
    yield "popularity, frozen", lists.frozen_ranks(log, ranked, counts_I)
    yield "popularity", lists.popular_ranks(log, ranked)
    yield "popularity, last 7 days", lists.popular_ranks(log, ranked, days=7)
    for days in HALF_LIVES:
        name = f"popularity, half-life {days} d"
        yield name, lists.popular_ranks(log, ranked, half_life=days)
    for name, parts in carried.items():
        yield name, lists.carried_ranks(log, ranked, parts)


def carried_peers(train: Log, items: int) -> dict[str, list[Carried]]:
    """Peers that follow the user's events, fitted on `train`."""
    ease_II = lists.ease(train, items)
    near = Carried(lists.cooccurrence(train, items, decay=0.8), 0.8, lists.STEPS)
    return {
        "EASE on the bag": [Carried(ease_II)],
        "EASE, decay .8": [Carried(ease_II, 0.8)],
        "co-occurrence within 10, decay .8": [near],
        "co-occurrence + .3 EASE, decay .95": [near, Carried(ease_II, 0.95, factor=0.3)],
    }


def line(key: tuple[str, str, str, str], rows: int, found: Mapping[str, float]) -> dict[str, Any]:
    """A row of the CSV; `key`: data, protocol, tie rule and peer."""
    figures = {name: f"{found[name]:.4f}" if name in found else "" for name in FIGURES}
    return dict(zip(COLUMNS, (*key, rows), strict=False)) | figures


if __name__ == "__main__":
    main()
