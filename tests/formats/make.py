"""Folders in today's formats, kept beside this file: every later version must read them.

    PYTHONPATH=. python tests/formats/make.py tests/formats/0.1

A new format gets a new folder; those that are there are never made again. `ids`, `features` (a
model of features and histories), `histories` (one that keeps its users' histories besides),
`bounded` (histories of both sides without a map, a bounded skip) and `slopes` (that, with slopes
in place of levels) hold `data`, `run` and `expected.json`; `comparison` and `study` are what
`compare` and `tune` on the data of `ids` have left, without checkpoints and logs.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

USERS, ITEMS = range(24), range(16)
PAIRS = [(1, 3), (7, 15), (23, 0), (99, 3), (1, 77)]
"""Of raw ids; 99 and 77 are unknown."""
FEATURES = (
    *("--user-features", "users.csv", "--user-feature", "age:numeric=age"),
    *("--item-features", "items.csv", "--item-feature", "genres:multi=genres"),
)
SIZES = (
    "model.embedding_dim=4",
    "model.expert_dim=4",
    "model.tower_dims=[4]",
    "trainer.patience=30",
)
ALL = ("model.features=all", "model.item_bag=ratings")
BOUNDED = (
    *ALL,
    "model.user_bag=ratings",
    "model.bag_dim=0",
    "model.bilinear_rank=3",
    "model.bilinear_diagonal=true",
)
SLOPES = (*BOUNDED, "model.bag_ratings=linear")
MODELS = {"ids": (), "features": ALL, "histories": ALL, "bounded": BOUNDED, "slopes": SLOPES}
LITTLE = (
    *("--max-epochs", 1, "--set", "model.embedding_dim=4"),
    *("--set", "model.expert_dim=4", "--set", "model.tower_dims=[4]"),
    *("--set", "optim.router_lr_multiplier=1"),  # the default when these were made
)
STUDIES = {
    "comparison": ("compare", "--routers", "topk", "--experts", 3, *LITTLE),
    "study": ("tune", "--router", "topk", *LITTLE),
}
"""Without `--seeds` and `--trials`: 1 of each is kept."""
LEFT_OUT = ("checkpoints", "events", "logs", "configs", "command.txt", ".lock", "*.csv", "*.md")


def main(out: Path) -> None:
    for name in {**MODELS, **STUDIES}.keys() - {path.name for path in out.glob("*")}:
        with tempfile.TemporaryDirectory() as folder:
            if name in MODELS:
                keep(Path(folder), MODELS[name], out / name)
            else:
                shutil.copytree(out / "ids" / "data", Path(folder) / "data")
                keep_study(Path(folder), name, out / name)


def keep_study(work: Path, name: str, out: Path) -> None:
    """One run of it, on `work`/data."""
    size = ("--seeds", 1) if name == "comparison" else ("--trials", 1)
    recsys_moe(work, *map(str, STUDIES[name]), *map(str, size), "--data", "data", "--out", "made")
    left_out = shutil.ignore_patterns(*LEFT_OUT)
    shutil.copytree(work / "made", out, ignore=left_out)
    for kept in (work / "made").glob("*/*/metrics.csv"):
        shutil.copyfile(kept, out / kept.relative_to(work / "made"))


def keep(work: Path, settings: tuple[str, ...], out: Path) -> None:
    """Prepare, train 12 epochs in `work`, and keep what others would have kept of it."""
    write_tables(work)
    columns = ("--user", "user", "--item", "item", "--task", "watch:binary=watched")
    more = FEATURES if settings else ()
    rating = ("--task", "rating:regression=rating")
    recsys_moe(
        work, "prepare", "table", "--input", "log.csv", *columns, *rating, *more, "--out", "data"
    )
    sized = (*SIZES, "model.bag_dim=4", *settings)
    sets = [word for pair in sized for word in ("--set", pair)]
    fit = ("fit", "--data", "data", "--out", "run", "--max-epochs", "12", "--lr", "0.02")
    recsys_moe(work, *fit, "--experts", "3", "--batch-size", "32", *sets)
    shutil.copytree(work / "data", out / "data")
    shutil.copytree(work / "run" / "model", out / "run" / "model")
    (out / "run" / "checkpoints").mkdir()
    for name in ("config.yaml", "checkpoints/last.ckpt"):
        shutil.copyfile(work / "run" / name, out / "run" / name)
    (out / "expected.json").write_text(json.dumps(scores(out / "run" / "model")) + "\n")


def write_tables(folder: Path) -> None:
    """A log by a formula, with features of users and items."""
    pairs = [(user, item) for user in USERS for item in ITEMS if (user * item) % 5 != 1]
    log = [(u, i, int(u % 4 > i % 3), 1 + (u * i) % 5 if u % 4 > i % 3 else "") for u, i in pairs]
    write(folder / "log.csv", ["user", "item", "watched", "rating"], log)
    write(folder / "users.csv", ["user", "age"], [(u, 20 + u) for u in USERS])
    genres = ("Comedy", "Comedy|Drama", "Drama")
    write(folder / "items.csv", ["item", "genres"], [(i, genres[i % 3]) for i in ITEMS])


def write(path: Path, header: list[str], rows: list[tuple[object, ...]]) -> None:
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])


def scores(model: Path) -> dict[str, list[float]]:
    """Of PAIRS, by task."""
    from recsys_moe import Predictor

    users, items = zip(*PAIRS, strict=True)
    found = Predictor.load(model).score(users, items).tasks
    return {name: values.tolist() for name, values in found.items()}


def recsys_moe(folder: Path, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "recsys_moe", *words], cwd=folder, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
