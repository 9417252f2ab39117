"""Defaults that follow the data, beside the fixed ones and the shipped recipes, on many logs.

    python -m research.defaults --work DIR --raw DIR [--logs synthetic-3k,...] [--seeds 3]

Runs what is missing, one run at a time in this process, and adds a row per run to
research/results/defaults.csv; start it again to go on. `--raw` has the unpacked ml-100k, ml-1m and
book-crossing. At the end it prints who is ahead of what needs no model
(research/defaults_ahead.py) and what leaving out one log says (research/defaults_left_out.py).
"""

from __future__ import annotations

import argparse
import csv
import itertools
import logging
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import common
from recsys_moe.config.auto import with_choices
from recsys_moe.config.files import merge, merge_all, nested, read_config_file
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.kinds import kind_of
from recsys_moe.lab.tune.dimensions import Choices, Dimension, Value
from recsys_moe.lab.tune.space import make_space
from recsys_moe.schema import Schema
from recsys_moe.train.fit import fit
from research import defaults_ahead
from research.defaults_ahead import BOUNDS
from research.defaults_judge import Ahead, judge
from research.defaults_left_out import left_out, table
from research.defaults_logs import LOGS, prepared
from research.defaults_peers import NAMES, fitted, judged, opened

ROWS = Path(__file__).parent / "results" / "defaults.csv"
RECIPES = {"ml-1m": "movielens_1m_best", "ml-100k-time": "movielens_100k_time"}
RECIPES |= {"ml-100k-last": "movielens_1m_next"}
"""The best shipped recipe where it is not that of MovieLens-100K."""
OTHERS: dict[str, dict[str, Any]] = {
    "softmax": {"model": {"router": {"name": "softmax"}}},
    "moesart": {"model": {"router": {"name": "moesart"}}},
    "wide": {"model": {"num_experts": 16, "expert_dim": 256, "tower_dims": [256]}},
    "narrow": {"model": {"num_experts": 4, "expert_dim": 64, "tower_dims": [64]}},
    "means": {"model": {"biases": True}, "optim": {"loss_normalization": "absolute"}},
    "bags without ratings": {"model": {"item_bag": "items", "user_bag": "users"}},
    "no bags": {"model": {"item_bag": "none", "user_bag": "none"}},
    "temperature 0.2": {"model": {"router": {"name": "moesart", "temperature": 0.2}}},
    "temperature 1": {"model": {"router": {"name": "moesart", "temperature": 1.0}}},
    "no means": {"model": {"biases": False}},
    "48 epochs": {"trainer": {"max_epochs": 48}},
    "uniform": {"data": {"popularity_exponent": 0}},
    "no order": {"model": {"sequence": "none"}},
    "order": {"model": {"sequence": "lru"}},
    "next-item loss": {"model": {"next_item_weight": 1.0}},
    "gain 1": {"model": {"sequence_gain": 1.0}},
    "gain 0.1": {"model": {"sequence_gain": 0.1}},
    "order without ids": {"model": {"sequence": "lru", "user_ids": False, "biases": False}},
    "popularity": {"model": {"time_features": ["popularity"]}},
    "no popularity": {"model": {"time_features": "none"}},
    "popularity without order": {"model": {"sequence": "none", "time_features": ["popularity"]}},
    "float32": {"trainer": {"precision": "32-true"}},
    "bfloat16": {"trainer": {"precision": "bf16-mixed"}},
    **{f"decay {one:g}": {"optim": {"weight_decay": one}} for one in (5e-4, 2e-3, 6e-3)},
    "rate .006": {"optim": {"lr": 6e-3}},
    "no dropout": {"model": {"dropout": 0.0}},
    "rate .006 no dropout": {"model": {"dropout": 0.0}, "optim": {"lr": 6e-3}},
    "rate .009 no dropout": {"model": {"dropout": 0.0}, "optim": {"lr": 9e-3}},
    "order with ids": {"model": {"sequence": "lru", "user_ids": True, "biases": True}},
}
"""Sections over the automatic ones: the rules, one changed at a time."""
DRAW = "draw-"
SPACE = {
    "optim.weight_decay": {"low": 1e-6, "high": 1e-2, "log": True},
    "model.dropout": {"choices": [0.0, 0.2, 0.4]},
    "model.expert_dim": {"choices": [16, 64, 256]},
    "trainer.batch_size": {"choices": [128, 256, 512, 1024]},
}
"""What trials search, besides the learning rate."""
COLUMNS = (
    *("log", "contender", "seed", "val_loss", "loss", *BOUNDS, *BOUNDS.values()),
    *(*(f"{name}_error" for name in BOUNDS), "missed", "best_epoch", "minutes", "commit"),
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="for data and runs")
    parser.add_argument("--raw", type=Path, help="has ml-100k and ml-1m")
    parser.add_argument("--logs", default=",".join(LOGS))
    parser.add_argument("--contenders", default="automatic,fixed,recipe")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=Path, default=ROWS)
    options = parser.parse_args(argv)
    logging.getLogger("recsys_moe").setLevel(logging.ERROR)
    names = options.logs.split(","), options.contenders.split(",")
    for seed, log, contender in itertools.product(range(options.seeds), *names):
        if (log, contender, str(seed)) not in finished(options.rows):
            row = run(log, contender, seed, work=options.work, raw=options.raw)
            append(row, options.rows)
            print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    if options.rows.exists():
        with options.rows.open(newline="", encoding="utf-8") as stream:
            rows = [*csv.DictReader(stream)]
        print(defaults_ahead.table(rows, dict.fromkeys(row["contender"] for row in rows)))
        print(table(left_out(rows)))


def finished(path: Path) -> set[tuple[str, str, str]]:
    if not path.exists():
        return set()
    with path.open(newline="", encoding="utf-8") as stream:
        return {(row["log"], row["contender"], row["seed"]) for row in csv.DictReader(stream)}


def append(row: dict[str, Any], path: Path) -> None:
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def config_of(contender: str, log: str, schema: Schema, seed: int) -> Config:
    """`automatic`, `fixed` (the configuration's own defaults), `recipe`, `as if sampled` (the order
    of a log whose negatives were), one of OTHERS, or a trial, `draw-0`, `draw-1`, ...."""
    if contender == "fixed":
        raw: dict[str, Any] = {}
    elif contender == "recipe":
        raw = read_config_file(RECIPES.get(log, "movielens_100k_best"))
    elif contender == "as if sampled":
        own = {"data": {"resample_negatives": False, "list_prior": 1.0}}
        raw = with_choices(own, replace(schema, negatives="uniform"), everything=True)[0]
    elif contender.startswith(DRAW):
        raw = drawn(int(contender.removeprefix(DRAW)), schema)
    else:
        other = OTHERS[contender] if contender != "automatic" else {}
        raw = with_choices(other, schema, everything=True)[0]
    return parse_config(merge(raw, {"trainer": {"seed": seed}}))


def drawn(number: int, schema: Schema) -> dict[str, Any]:
    """Automatic settings with a random point of the space of `tune` with SPACE."""
    raw, rng = with_choices({}, schema, everything=True)[0], np.random.default_rng(number)
    space = make_space(parse_config(raw).model_dump(mode="json"), SPACE, ())
    return merge_all([raw, *(nested(key, _point(one, rng)) for key, one in space.items())])


def _point(one: Dimension, rng: np.random.Generator) -> Value:
    if isinstance(one, Choices):
        return one.choices[rng.integers(len(one.choices))]
    return math.exp(rng.uniform(math.log(one.low), math.log(one.high)))


def run(log: str, contender: str, seed: int, *, work: Path, raw: Path | None) -> dict[str, Any]:
    """Train, evaluate on test; a row of COLUMNS. Minutes are those of the processors in `fit`."""
    data = prepared(log, work, raw)
    schema, out = Schema.load(data), work / f"{log}-{contender}-{seed}".replace(" ", "_")
    own: dict[str, Any] = {"log": log, "contender": contender, "seed": seed}
    own |= {"commit": common.commit() or "unknown"}
    begun = time.process_time()
    if contender in NAMES:
        given = opened(data)
        scores = fitted(contender, given, seed)
        own["minutes"] = f"{(time.process_time() - begun) / 60:.4f}"
        return own | shown(judged(scores, given))
    best = fit(config_of(contender, log, schema, seed), data, out, overwrite=True)
    own |= {"minutes": f"{(time.process_time() - begun) / 60:.4f}", "best_epoch": best["epoch"]}
    own["val_loss"] = f"{best['loss']:.4f}"
    found, ahead = judge(out, data)
    shutil.rmtree(out)
    loss = sum(
        task.weight * found["tasks"][task.name][kind_of(task).loss_metric] for task in schema.tasks
    )
    return own | shown(ahead) | {"loss": f"{loss:.4f}", "missed": "; ".join(found["missed"])}


def shown(ahead: Mapping[str, Ahead]) -> dict[str, str]:
    found = {}
    for name, one in ahead.items():
        found |= {name: one.own, BOUNDS[name]: one.bound, f"{name}_error": one.error}
    return {name: f"{value:.4f}" for name, value in found.items()}


if __name__ == "__main__":
    main()
