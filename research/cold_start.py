"""Cold start: what do features tell of new items, and a few items of new users?

    python -m research.cold_start --ratings ml-100k --csv cold_start.csv [--seeds 5] [--epochs 60]

Per seed a tenth of the items is hidden: all their rows, negatives included, are taken out of
MovieLens-100K after it was prepared, and what is left is trained on with genres and years. Then the
hidden rows are scored twice by the same model: by what it says of an unknown item, and with genres
and year given. The same again for a tenth of the users and a model with histories of ratings: with
nothing given, and with five of their items and ratings, whose rows are left out of both figures.
A row of --csv is finished work: the same command goes on behind it.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks import common
from recsys_moe.inference.predictor import ColdUser, Predictor
from recsys_moe.kinds.curves import exact_auc
from research.continued import SPLITS, command

COLD_START = {"items": ["model.features=all"], "users": ["model.item_bag=ratings"]}
"""What is hidden -> settings of the model that is told more of it."""
FEATURES = {"genres": "multi=genres:sep=|", "year": "numeric=year"}
AT_ONCE = 4096
"""Rows."""
NEVER = 1e9
"""So many times the gain, where there is none."""


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    logging.getLogger("recsys_moe.inference").setLevel(logging.ERROR)  # that all ids are unknown
    done = read(options.csv)
    keys = [key_of(hidden, s, options) for s in range(options.seeds) for hidden in options.hide]
    for key in keys:
        if not any(is_of(row, key) for row in done):
            done.append({**key, **measure(key["hidden"], key["seed"], options)})
            write(options.csv, done)
    show([row for key in keys for row in done if is_of(row, key)], as_json=options.json)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ratings", type=Path, required=True, help="the folder with u.data")
    parser.add_argument("--csv", type=Path, required=True, help="finished rows; added to")
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0 on")
    parser.add_argument("--epochs", type=int, default=60, help="most of each training")
    parser.add_argument("--hide", default="items,users")
    parser.add_argument("--share", type=float, default=0.1, help="of items or users to hide")
    parser.add_argument("--history", type=int, default=5, help="items given of a hidden user")
    parser.add_argument("--config", default="movielens_100k")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, as of fit")
    parser.add_argument("--json", action="store_true", help="print the line of JSON alone")
    options = parser.parse_args(argv)
    options.hide = options.hide.split(",")
    if unknown := set(options.hide) - COLD_START.keys():
        parser.error(f"--hide must be of {','.join(COLD_START)}, got {sorted(unknown)[0]!r}")
    return options


def key_of(hidden: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """What makes a row of the CSV the one that is asked for."""
    numbers = {name: getattr(options, name) for name in ("epochs", "share", "history")}
    asked = {"hidden": hidden, "seed": seed, "config": options.config, **numbers}
    return {**asked, "settings": " ".join(options.set)}


def is_of(row: dict[str, Any], key: dict[str, Any]) -> bool:
    return all(str(row[name]) == str(value) for name, value in key.items())


def read(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    return pd.read_csv(file, keep_default_na=False).to_dict("records")


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    part = file.with_name(f"{file.name}.part")
    pd.DataFrame(rows).to_csv(part, index=False)
    os.replace(part, file)


def measure(hidden: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="cold-start-") as scratch:
        folder = Path(scratch)
        tables, items = prepared(options.ratings, folder, seed)
        kept, cold, given = hide(hidden, tables, items, options=options, seed=seed)
        fitted = train(folder, kept, items, words=[hidden, seed, options])
        predictor = Predictor.load(folder / "run")
        told = {hidden.removesuffix("s"): given}
        figures = {"alone": scored(predictor, cold, {}), "given": scored(predictor, cold, told)}
    numbers = {f"{way}_{name}": v for way, found in figures.items() for name, v in found.items()}
    counts = {"hidden_ids": len(given), "rows": len(cold), "epoch": fitted["epoch"]}
    return {**counts, "minutes": round((time.perf_counter() - start) / 60, 2), **numbers}


def prepared(ratings: Path, folder: Path, seed: int) -> tuple[dict[str, pd.DataFrame], Any]:
    """The rows of each split, with raw ids, and the items with genres and year."""
    words = ["--variant", "100k", "--source", ratings, "--partial", "--seed", seed]
    command("prepare", "movielens", *words, "--out", folder / "all")
    ids = {
        entity: pd.read_parquet(folder / "all" / f"{entity}s.parquet")
        for entity in ("user", "item")
    }
    tables = {}
    for split in SPLITS:
        rows = pd.read_parquet(folder / "all" / split)
        columns = {
            entity: ids[entity][entity].to_numpy()[rows[f"{entity}_index"]] for entity in ids
        }
        tables[split] = pd.DataFrame({**columns, "watch": rows["watch"], "rating": rows["rating"]})
    return tables, ids["item"][["item", *FEATURES]]


def hide(
    hidden: str, tables: dict[str, pd.DataFrame], items: Any, *, options: Any, seed: int
) -> tuple[dict[str, pd.DataFrame], pd.DataFrame, dict[Any, ColdUser]]:
    """The splits without the hidden ids, rows of these to score, and what is given of them."""
    entity, random = hidden.removesuffix("s"), np.random.default_rng(seed)
    every = pd.concat(tables.values(), ignore_index=True)
    watched = every[every["watch"] == 1]
    count = watched.groupby(entity).size()
    known = np.sort(count.index[count > (options.history if entity == "user" else 0)].to_numpy())
    ids = random.choice(known, max(1, round(options.share * len(known))), replace=False).tolist()
    kept = {split: rows[~rows[entity].isin(ids)] for split, rows in tables.items()}
    cold = every[every[entity].isin(ids)]
    if entity == "item":
        features = (
            items.set_index("item").astype(object).where(items.set_index("item").notna(), None)
        )
        return kept, cold, {one: ColdUser(features.loc[one].to_dict()) for one in ids}
    told = (
        watched[watched["user"].isin(ids)]
        .groupby("user")
        .sample(options.history, random_state=seed)
    )
    given = {
        user: ColdUser(
            history=dict(zip(rows["item"].tolist(), rows["rating"].tolist(), strict=True))
        )
        for user, rows in told.groupby("user")
    }
    return kept, cold.drop(index=told.index), given


def train(
    folder: Path, kept: dict[str, pd.DataFrame], items: pd.DataFrame, *, words: list[Any]
) -> dict[str, Any]:
    """What `fit` prints."""
    hidden, seed, options = words
    files: list[object] = []
    for split, rows in kept.items():
        rows.to_csv(folder / f"{split}.csv", index=False)
        files += [f"--{split}", folder / f"{split}.csv"]
    files += ["--user", "user", "--item", "item"]
    files += ["--task", "watch:binary=watch", "--task", "rating:regression=rating"]
    if hidden == "items":
        items.to_csv(folder / "items.csv", index=False)
        files += ["--item-features", folder / "items.csv"]
        for name, spec in FEATURES.items():
            files += ["--item-feature", f"{name}:{spec}"]
    command("prepare", "table", *files, "--out", folder / "data")
    settings = [word for one in (*COLD_START[hidden], *options.set) for word in ("--set", one)]
    shared = ["--config", options.config, "--max-epochs", options.epochs, "--seed", seed]
    return command(
        "fit", "--data", folder / "data", *shared, *settings, "--out", folder / "run", "--json"
    )


def scored(
    predictor: Predictor, rows: pd.DataFrame, given: dict[str, dict[Any, ColdUser]]
) -> dict[str, float]:
    """AUC of the watched among these rows, MSE of the rated ones. `given`: by entity and id."""
    entities = [
        [given.get(entity, {}).get(one, one) for one in rows[entity].tolist()]
        for entity in ("user", "item")
    ]
    parts = [
        predictor.score(*(entity[start : start + AT_ONCE] for entity in entities)).tasks
        for start in range(0, len(rows), AT_ONCE)
    ]
    watch, rating = (torch.cat([part[name] for part in parts]) for name in ("watch", "rating"))
    labels, stars = (torch.tensor(rows[name].to_numpy()) for name in ("watch", "rating"))
    mse = float((rating - stars).square().nanmean())
    return {"auc": exact_auc(watch, labels), "mse": mse}


def gain(rows: list[dict[str, Any]], metric: str) -> dict[str, Any]:
    """How much better with what is given: mean over seeds, and its standard error from two on."""
    sign = 1 if metric == "auc" else -1
    better = [sign * (row[f"given_{metric}"] - row[f"alone_{metric}"]) for row in rows]
    means = {way: np.mean([row[f"{way}_{metric}"] for row in rows]) for way in ("alone", "given")}
    error = np.std(better, ddof=1) / math.sqrt(len(better)) if len(better) > 1 else None
    numbers = {**means, "gain": np.mean(better), "error": error}
    return {"seeds": len(rows)} | {n: None if v is None else float(v) for n, v in numbers.items()}


def show(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    found, targets = {}, []
    for hidden in dict.fromkeys(row["hidden"] for row in rows):
        for metric, title in (("auc", "watch AUC"), ("mse", "rating MSE")):
            name = f"{hidden}, {title}"
            one = gain([row for row in rows if row["hidden"] == hidden], metric)
            found[name] = one
            if one["error"] is not None:
                errors = 3 * one["error"] / one["gain"] if one["gain"] > 0 else NEVER
                targets.append(common.target(f"3 standard errors / gain: {name}", errors, 1))
    if not as_json:
        columns = {"hidden": "{name}", "seeds": "{seeds}", "unseen row alone": "{alone:.4f}"}
        columns |= {"given": "{given:.4f}", "better by": "{gain:.4f}", "std. error": "{error:.2}"}
        common.table(columns, [{**r, "error": r["error"] or "-"} for r in common.named(found)])
        if targets:
            common.print_targets(targets)
    numbers = {"runs": rows, "gains": found, "targets": targets}
    print(json.dumps({"benchmark": "cold_start", **common.facts(), **numbers}))


if __name__ == "__main__":
    main()
