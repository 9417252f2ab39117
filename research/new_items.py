"""New items: does a model with features ever end behind one without?

    python -m research.new_items --data DIR --csv new-items.csv [--logs ml-100k] [--seeds 3]

A tenth of the items with at least five ratings (400 of `synthetic`) is hidden from training and
validation. Then the rows of the hidden items are scored by a model without features, and by models
with them for each of --rates (data.features_only_rate). --data: a folder with ml-100k/, ml-1m/ and
book-crossing/ in their official layouts. A row of --csv is finished work: the same command goes on
behind it.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks import common
from recsys_moe.config.settings import parse_config
from recsys_moe.inference.predictor import ColdUser, Predictor
from recsys_moe.train.fit import fit
from recsys_moe.train.new_ids import WAYS
from research.cold_start import gain, read, scored, write
from research.continued import SPLITS, command

GENRES, YEAR = "genres:multi=genres:sep=|", "year:numeric=year"
MODEL = {"embedding_dim": 32, "num_experts": 8, "expert_dim": 64, "tower_dims": [64]}
FEW, SHARE, VALIDATION, USERS = 5, 0.1, 0.12, 600
FILMS, RATINGS, NEGATIVES, HIDDEN = 9700, 100_000, 160, 400
"""Of `synthetic`, which has `USERS` users, as `ml-1m` has here."""


class Log(NamedTuple):
    """Rows with user, item and rating (NaN: none), features of items, and what these are."""

    rows: pd.DataFrame
    items: pd.DataFrame
    features: tuple[str, ...] = (GENRES, YEAR)
    negatives: int | None = None
    hidden: int | None = None


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    logging.getLogger("recsys_moe.inference").setLevel(logging.ERROR)  # that all ids are unknown
    done = read(options.csv)
    for seed in range(options.seeds):
        for log in options.logs:
            wanted = [rate for rate in ("none", *options.rates) if not has(done, log, seed, rate)]
            if not wanted:
                continue
            with tempfile.TemporaryDirectory(prefix="new-items-") as scratch:
                hidden = prepare(Path(scratch), LOGS[log](options.data, seed), seed)
                for rate in wanted:
                    done.append({"log": log, "seed": seed, "features_only_rate": rate})
                    done[-1] |= measure(Path(scratch), hidden, rate, seed=seed, options=options)
                    write(options.csv, done)
    show([row for row in done if row["log"] in options.logs], as_json=options.json)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder with the logs")
    parser.add_argument("--csv", type=Path, required=True, help="finished rows; added to")
    parser.add_argument("--logs", default=",".join(LOGS))
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 0 on")
    parser.add_argument("--rates", default="0,0.1", help="of data.features_only_rate")
    parser.add_argument("--epochs", type=int, default=8, help="most of each training")
    parser.add_argument("--json", action="store_true", help="print the line of JSON alone")
    options = parser.parse_args(argv)
    options.logs, options.rates = options.logs.split(","), options.rates.split(",")
    if unknown := set(options.logs) - LOGS.keys():
        parser.error(f"--logs must be of {','.join(LOGS)}, got {sorted(unknown)[0]!r}")
    return options


def has(done: list[dict[str, Any]], log: str, seed: int, rate: str) -> bool:
    wanted = [log, str(seed), rate]
    return any(
        [str(row[k]) for k in ("log", "seed", "features_only_rate")] == wanted for row in done
    )


def ml_100k(data: Path, seed: int) -> Log:
    rows = pd.read_csv(data / "ml-100k" / "u.data", sep="\t", names=["user", "item", "rating", "t"])
    films = pd.read_csv(data / "ml-100k" / "u.item", sep="|", encoding="latin-1", header=None)
    flags = films.iloc[:, 5:24].to_numpy()
    items = {"item": films[0], "genres": ["|".join(map(str, np.flatnonzero(f))) for f in flags]}
    return Log(rows, pd.DataFrame({**items, "year": films[2].str[-4:].astype(float)}))


def ml_1m(data: Path, seed: int) -> Log:
    """Of 600 users."""
    how: dict[str, Any] = {"sep": "::", "engine": "python", "encoding": "latin-1"}
    rows = pd.read_csv(data / "ml-1m/ratings.dat", names=["user", "item", "rating", "t"], **how)
    items = pd.read_csv(data / "ml-1m/movies.dat", names=["item", "title", "genres"], **how)
    items["year"] = items["title"].str.extract(r"\((\d{4})\)\s*$")[0].astype(float)
    users = np.random.default_rng(seed).choice(rows["user"].unique(), USERS, replace=False)
    return Log(rows[rows["user"].isin(users)], items)


def books(data: Path, seed: int) -> Log:
    """Users with over 5 rows, books with over 2; an ISBN begins with language and publisher."""
    rows = pd.read_csv(
        data / "book-crossing/BX-Book-Ratings.csv", sep=";", encoding="latin-1", dtype=str
    )
    rows.columns = pd.Index(["user", "item", "rating"])
    rows["rating"] = rows["rating"].astype(float).replace(0, np.nan)
    rows = rows.drop_duplicates(["user", "item"])
    rows = rows[rows.groupby("user")["user"].transform("size") > 5]
    rows = rows[rows.groupby("item")["item"].transform("size") > 2]
    items = pd.DataFrame({"item": rows["item"].unique()})
    items["language"], items["publisher"] = items["item"].str[:1], items["item"].str[:5]
    return Log(rows, items, ("language:categorical=language", "publisher:categorical=publisher"))


def synthetic(data: Path, seed: int) -> Log:
    """600 users and 9,700 films with a long tail, of which genres and year say a little."""
    draw = np.random.default_rng(seed)
    of_film = np.stack(
        [np.isin(range(18), draw.choice(18, 1 + n % 3, False)) for n in range(FILMS)]
    )
    genres = of_film / np.sqrt(of_film.sum(1, keepdims=True))
    year = np.clip(2018 - draw.gamma(1.5, 12, FILMS), 1920, 2018).round()
    age = (year - year.mean()) / year.std()
    liked = 1.5 * draw.normal(size=FILMS) + 0.3 * genres @ draw.normal(size=18) + 0.2 * age
    good = 0.35 * draw.normal(size=FILMS) + 0.25 * genres @ draw.normal(size=18) - 0.1 * age
    activity = draw.lognormal(0, 1.1, USERS)
    counts = np.clip(activity / activity.sum() * RATINGS, 20, FILMS // 4).astype(int)
    parts = []
    for user, count in enumerate(counts):
        taste, generous = genres @ (0.5 * draw.normal(size=18)), 0.45 * draw.normal()
        chance = np.exp(liked + taste + 0.2 * draw.normal() * age)
        item = draw.choice(FILMS, count, replace=False, p=chance / chance.sum())
        stars = 3.5 + generous + good[item] + 0.5 * taste[item] + 0.8 * draw.normal(size=count)
        rating = np.clip(np.round(2 * stars) / 2, 0.5, 5)
        parts.append(pd.DataFrame({"user": user, "item": item, "rating": rating}))
    names = ["|".join(map(str, np.flatnonzero(one))) for one in of_film]
    items = pd.DataFrame({"item": range(FILMS), "genres": names, "year": year})
    return Log(pd.concat(parts, ignore_index=True), items, negatives=NEGATIVES, hidden=HIDDEN)


LOGS: dict[str, Callable[[Path, int], Log]] = {
    "synthetic": synthetic,
    "ml-100k": ml_100k,
    "ml-1m": ml_1m,
    "books": books,
}


def prepare(folder: Path, log: Log, seed: int) -> tuple[pd.DataFrame, dict[Any, ColdUser]]:
    """`folder`/data without the hidden items; their rows, and what is told of them.

    A user gets uniform negatives, as many as positives unless the log says how many.
    """
    draw, ratings = np.random.default_rng(seed + 1), log.rows
    items, counts = np.unique(ratings["item"].to_numpy(), return_counts=True)
    number = log.hidden or max(1, round(SHARE * int((counts >= FEW).sum())))
    ids = draw.choice(items[counts >= FEW], number, replace=False)
    parts = [ratings[["user", "item", "rating"]].assign(watch=1)]
    for user, own in ratings.groupby("user")["item"]:
        free = np.setdiff1d(items, own.to_numpy())
        drawn = draw.choice(free, min(log.negatives or len(own), len(free)), replace=False)
        parts.append(pd.DataFrame({"user": user, "item": drawn, "watch": 0}))
    every = pd.concat(parts, ignore_index=True)
    is_hidden, is_val = every["item"].isin(ids), draw.random(len(every)) < VALIDATION
    cold = every[is_hidden]
    words: list[object] = ["--user", "user", "--item", "item"]
    words += ["--task", "watch:binary=watch", "--task", "rating:regression=rating"]
    chosen = (~is_hidden & ~is_val, ~is_hidden & is_val, is_hidden)
    for split, own_rows in zip(SPLITS, chosen, strict=True):
        every[own_rows].to_csv(folder / f"{split}.csv", index=False)
        words += [f"--{split}", folder / f"{split}.csv"]
    log.items.to_csv(folder / "items.csv", index=False)
    words += ["--item-features", folder / "items.csv"]
    words += [word for spec in log.features for word in ("--item-feature", spec)]
    command("prepare", "table", *words, "--out", folder / "data")
    names = [spec.partition(":")[0] for spec in log.features]
    table = log.items.set_index("item")[names].astype(object)
    table = table.where(table.notna(), None)
    return cold, {one: ColdUser(table.loc[one].to_dict()) for one in ids.tolist()}


def measure(
    folder: Path,
    hidden: tuple[pd.DataFrame, dict[Any, ColdUser]],
    rate: str,
    *,
    seed: int,
    options: Any,
) -> dict[str, Any]:
    start, (cold, told) = time.process_time(), hidden
    raw: dict[str, Any] = {"model": {**MODEL, "features": "none" if rate == "none" else "all"}}
    raw["data"] = {} if rate == "none" else {"features_only_rate": float(rate)}
    raw["trainer"] = {"max_epochs": options.epochs, "patience": 3, "seed": seed, "logger": "csv"}
    val = fit(parse_config(raw), folder / "data", folder / f"run-{rate}")
    predictor = Predictor.load(folder / f"run-{rate}")
    found = scored(predictor, cold, {} if rate == "none" else {"item": told})
    known = {"auc": val["tasks"]["watch"]["auc"], "mse": val["tasks"]["rating"]["mse"]}
    said = val.get("new_ids", {}).get("item", {})
    return {
        **{"hidden": len(told), "rows": len(cold), "epoch": val["epoch"]},
        **{f"new_{name}": value for name, value in found.items()},
        **{f"known_{name}": value for name, value in known.items()},
        **{f"said_{t}_{w}": one[w] for t, one in said.items() for w in WAYS},
        "seconds": round(time.process_time() - start, 1),
    }


def show(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    """Per log and rate how much better than without features: `gain` of cold_start.py."""
    found: dict[str, Any] = {}
    for log in dict.fromkeys(row["log"] for row in rows):
        own = [row for row in rows if row["log"] == log]
        bare = {str(row["seed"]): row for row in own if str(row["features_only_rate"]) == "none"}
        for rate in dict.fromkeys(str(row["features_only_rate"]) for row in own):
            told = [row for row in own if str(row["features_only_rate"]) == rate != "none"]
            for name in ("auc", "mse") if told else ():
                key = f"new_{name}"
                pairs = [
                    {
                        f"given_{name}": float(r[key]),
                        f"alone_{name}": float(bare[str(r["seed"])][key]),
                    }
                    for r in told
                ]
                found[f"{log}, {rate}, {name}"] = gain(pairs, name)
    if not as_json:
        columns = {"log, rate, metric": "{name}", "seeds": "{seeds}", "none": "{alone:.4f}"}
        columns |= {"features": "{given:.4f}", "better by": "{gain:.4f}", "std. error": "{error}"}
        common.table(columns, common.named(found))
    print(json.dumps({"benchmark": "new_items", **common.facts(), "runs": rows, "gains": found}))


if __name__ == "__main__":
    main()
