"""Continued training: is `fit --init-from` as good as training anew on all rows, in a third of the
time?

    python -m research.continued --ratings ml-100k/u.data [--folder DIR] [--epochs 16 --more 5]
                                   [--set model.item_bag=ratings]

A tenth each of all ratings is drawn for validation and for test. A model learns from the earlier
half of the rest; then all the rest is learned twice, from that model and anew, and both are tested
on the same rows. Seconds are those of the whole command: of processors, and on the wall.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import common

COLUMNS = ["user", "item", "rating", "timestamp"]
SPLITS = ["train", "val", "test"]
TASKS = ["--task", "watch:binary", "--task", "rating:regression=rating", "--negatives", "per-user"]


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=1, clock=False)
    parser.add_argument(
        "--ratings", type=Path, required=True, help="user, item, rating, time; tabs"
    )
    parser.add_argument("--folder", type=Path, help="keep data and runs here (default: nowhere)")
    parser.add_argument("--epochs", type=int, default=16, help="most, of both trainings anew")
    parser.add_argument("--more", type=int, default=5, help="most, of the continued training")
    parser.add_argument("--config", default="movielens_100k")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE, as of fit")
    options = common.parse(parser, argv)
    with tempfile.TemporaryDirectory(prefix="continued-") as scratch:
        folder = options.folder or Path(scratch)
        prepare(options.ratings, folder, options.seed)
        show(train(folder, options))


def prepare(ratings: Path, folder: Path, seed: int) -> None:
    """`folder`/half, the earlier rows of the training and validation split of `folder`/all."""
    table = pd.read_csv(ratings, sep="\t", names=COLUMNS)
    part = np.random.default_rng(seed).choice(SPLITS, len(table), p=[0.8, 0.1, 0.1])
    is_early = table["timestamp"] <= table["timestamp"].median()
    for name, rows in (("half", table[is_early]), ("all", table)):
        files: list[object] = []
        (folder / name).mkdir(parents=True)
        for split in SPLITS:
            file = folder / name / f"{split}.csv"
            rows[part[rows.index] == split].to_csv(file, index=False)
            files += [f"--{split}", file]
        columns = ["--user", "user", "--item", "item", *TASKS, "--seed", seed]
        command("prepare", "table", *files, *columns, "--out", folder / name / "data")


def train(folder: Path, options: Any) -> dict[str, dict[str, Any]]:
    half, whole = (folder / name / "data" for name in ("half", "all"))
    shared = ["--config", options.config, "--seed", options.seed]
    shared += [word for one in options.set for word in ("--set", one)]
    anew, more = ["--max-epochs", options.epochs], ["--max-epochs", options.more]
    runs: dict[str, tuple[Path, list[object]]] = {
        "half": (half, anew),
        "from": (whole, ["--init-from", folder / "run-half", *more]),
        "anew": (whole, anew),
    }
    return {
        name: fit(folder / f"run-{name}", "--data", data, *shared, *own)
        for name, (data, own) in runs.items()
    }


def fit(out: Path, *words: object) -> dict[str, Any]:
    before, start = _processor_seconds(), time.perf_counter()
    val = command("fit", *words, "--out", out, "--json")
    seconds, wall = _processor_seconds() - before, time.perf_counter() - start
    test = command("evaluate", out, "--split", "test", "--json")
    tasks = test["tasks"]
    return {
        "epoch": val["epoch"],
        "epochs": sum(1 for _ in (out / "metrics.csv").open()) - 1,
        "seconds": seconds,
        "wall": wall,
        "val": val["loss"],
        "test": test["loss"],
        "auc": tasks["watch"]["auc"],
        "mse": tasks["rating"]["mse"],
    }


def _processor_seconds() -> float:
    """Of all commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def command(*words: object) -> dict[str, Any]:
    """What `recsys-moe` prints as JSON; {} where it prints something else."""
    line = [sys.executable, "-m", "recsys_moe", *map(str, words)]
    env = common.environment()
    run = subprocess.run(line, capture_output=True, text=True, env=env)
    if run.returncode == 0 and "--json" not in words:
        return {}
    return common.result_of(run, " ".join(line[2:]))


def show(found: dict[str, dict[str, Any]]) -> None:
    columns = {"training": "{name}", "epochs": "{epochs}", "best": "{epoch}"}
    columns |= {"processor s": "{seconds:.0f}", "wall s": "{wall:.0f}", "val loss": "{val:.4f}"}
    columns |= {"test loss": "{test:.4f}", "AUC": "{auc:.4f}", "MSE": "{mse:.4f}"}
    common.table(columns, common.named(found))
    more, anew = found["from"], found["anew"]
    targets = [
        common.target("test loss, from / anew", more["test"] / anew["test"], 1),
        common.target("processor seconds, from / anew", more["seconds"] / anew["seconds"], 1 / 3),
    ]
    common.report("continued", {"runs": found}, targets)


if __name__ == "__main__":
    main()
