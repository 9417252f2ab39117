"""A large log from raw rows to lists: time and peak memory of every stage, by its size.

    python benchmarks/scale.py --folder DIR [--rows 10000000 ...] [--set a.b=value ...]

A made-up log (Zipf items, lognormal users, clusters of taste, ratings, times; text ids of users)
goes through `prepare table --engine stream --negatives per-user`, one epoch of the recipe
`movielens_1m_best` from disk, `predict` for a tenth as many pairs, exact lists of 100 for a few
users, and two-stage lists for 10,000. Each stage is a fresh process; those in DIR/scale.csv are not
done again. `--rows`: about so many prepared ones, half of them negatives that `prepare` samples;
there are a hundredth as many users, and half as many items as users. `--steps`: end the epoch after
so many. Peaks are VmHWM, libraries included.
"""

from __future__ import annotations

import csv
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import common
import lightning
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from raw_log import Log

SIZES = (10_000_000, 25_000_000, 100_000_000)
ROWS_PER_PART = 1_000_000
RAW = 0.6
"""Interactions by prepared row: up to a fifth are of a pair that is there already."""
PREPARE_MB, SPLIT, BEST = 2048, "0.96,0.02,0.02", "movielens_1m_best"
LARGE = {
    "model": {"embedding_dim": 32, "bilinear_rank": 32, "bag_sample": 128},
    "data": {"max_memory_mb": 512},
    "trainer": {"max_epochs": 1, "checkpoint_every_n_steps": 10**9},
}
"""What the recipe needs of other settings with 1,500,000 ids, as `auto` chooses them there."""
IDS_PER_ROW = 64
"""Of a batch: a step moves all tables, so its rows grow with them, also as `auto` has it."""
EXACT_USERS, MANY_USERS, K, RETRIEVE = 4, 10_000, 100, 300
FIELDS = ("rows", "stage", "done", "seconds", "processor", "peak_mb", "load", "notes")
MOST_MB, MOST_GROWTH = 8 * 1024, 1.3


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=1, clock=False)
    parser.add_argument("--rows", type=int, nargs="*", default=SIZES)
    parser.add_argument("--folder", type=Path, help="keep data and results here (default: nowhere)")
    parser.add_argument("--only", nargs="*", choices=STAGES, default=list(STAGES))
    parser.add_argument("--set", nargs="*", default=[], help="settings of the recipe")
    parser.add_argument("--steps", type=int, help="of the epoch")
    parser.add_argument("--stage", choices=STAGES, help="measure this very process")
    options = common.parse(parser, argv)
    if options.stage:
        print(json.dumps(measure(options.stage, options.folder, options.rows[0], options)))
        return
    if not common.has_peaks("scale"):
        return
    sizes = [10_000] if options.quick else options.rows
    with tempfile.TemporaryDirectory(prefix="scale-") as scratch:
        folder = options.folder or Path(scratch)
        show([row for rows in sizes for row in through(folder, rows, options)])


def through(folder: Path, rows: int, options: Any) -> Iterator[dict[str, Any]]:
    """The stages of one size: those of DIR/scale.csv, and the others measured."""
    folder.mkdir(parents=True, exist_ok=True)
    path, before = folder / "scale.csv", {}
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as stream:
            before = {(row["rows"], row["stage"]): row for row in csv.DictReader(stream)}
    words = [__file__, "--folder", folder, "--rows", rows, "--set", *options.set]
    words += ["--steps", options.steps] if options.steps else []
    for stage in options.only:
        row: dict[str, Any] | None = before.get((str(rows), stage))
        if row is None:
            row = common.measured(stage, [*words, "--stage", stage])
            with path.open("a", encoding="utf-8", newline="") as stream:
                writer = csv.DictWriter(stream, FIELDS)
                if not stream.tell():
                    writer.writeheader()
                writer.writerow(row)
        yield row


def measure(stage: str, folder: Path, rows: int, options: Any) -> dict[str, Any]:
    """Seconds on the wall and of the processor, and the peak, of this process."""
    start, before = time.perf_counter(), time.process_time()
    done, notes = STAGES[stage](folder / str(rows), rows, options)
    return {
        "rows": rows,
        "stage": stage,
        "done": done,
        "seconds": round(time.perf_counter() - start, 1),
        "processor": round(time.process_time() - before, 1),
        "peak_mb": round(common.resident("VmHWM")),
        "load": round(os.getloadavg()[0], 1),
        "notes": notes,
    }


Done = tuple[int, str]
"""What a stage did: rows, steps or users; and a remark."""


def write(folder: Path, rows: int, options: Any) -> Done:
    """The raw log, in parts."""
    log, interactions = Log(rows), int(rows * RAW)
    (folder / "raw").mkdir(parents=True, exist_ok=True)
    for part, start in enumerate(range(0, interactions, ROWS_PER_PART)):
        size = min(ROWS_PER_PART, interactions - start)
        table = log.rows(np.random.default_rng([1, part]), size)
        pq.write_table(table, folder / "raw" / f"part-{part:05d}.parquet")
    return interactions, f"{log.users} users and {log.items} items"


def prepare(folder: Path, rows: int, options: Any) -> Done:
    from data_prep import table

    schema = table.prepare(
        folder / "data",
        input=folder / "raw",
        user="user",
        item="item",
        timestamp="time",
        tasks=["watch:binary", "rating:regression=stars"],
        negatives="per-user",
        duplicates="first",
        protocol="hash",
        fractions=SPLIT,
        engine="stream",
        max_memory_mb=PREPARE_MB,
        force=True,
    )
    found = sum(schema.rows.values())
    return found, f"{schema.user.size} users, {schema.item.size} items, {schema.report}"


def train(folder: Path, rows: int, options: Any) -> Done:
    """Steps per second and memory over time go to DIR/ROWS/pace.csv."""
    from recsys_moe.config.files import merge, parse_set, read_config_file
    from recsys_moe.config.settings import parse_config
    from recsys_moe.train.fit import fit

    batch = max(2 ** round(math.log2(rows * 3 // 200 / IDS_PER_ROW)), 2048)
    settings = [LARGE, {"trainer": {"batch_size": batch}}, *map(parse_set, options.set)]
    raw = reduce(merge, settings, read_config_file(BEST))
    limited = _limited(folder / "pace.csv", options.steps)
    before, lightning.Trainer = lightning.Trainer, limited  # type: ignore[misc]
    try:
        result = fit(parse_config(raw), folder / "data", folder / "run", overwrite=True)
    finally:
        lightning.Trainer = before  # type: ignore[misc]
    tasks, popular = result["tasks"], result["baselines"]["watch"]["popularity"]["auc"]
    told = f"watch AUC {tasks['watch']['auc']:.4f} (popularity {popular:.4f}), "
    with (folder / "pace.csv").open(encoding="utf-8") as stream:
        steps = int(stream.read().split()[-1].partition(",")[0])
    return steps * parse_config(raw).trainer.batch_size, f"{told}{steps} steps"


def _limited(path: Path, steps: int | None) -> Any:
    class Pace(lightning.Callback):
        """A line each 4 steps: steps, seconds on the wall and of the processor, MB."""

        def on_train_batch_end(self, trainer: Any, *rest: Any) -> None:
            step = trainer.global_step
            if step % 4 == 0 or trainer.is_last_batch:
                now = (time.perf_counter(), time.process_time(), common.resident("VmRSS"))
                with path.open("a", encoding="utf-8") as stream:
                    stream.write(",".join([str(step), *(f"{one:.1f}" for one in now)]) + "\n")

    class Limited(lightning.Trainer):
        def __init__(self, **settings: Any) -> None:
            path.unlink(missing_ok=True)
            settings["callbacks"] = [*settings["callbacks"], Pace()]
            super().__init__(**settings, limit_train_batches=steps)

    return Limited


def predict(folder: Path, rows: int, options: Any) -> Done:
    from recsys_moe.inference.files.predict import predict_file
    from recsys_moe.inference.predictor import Predictor

    parts, wanted = sorted((folder / "raw").iterdir()), rows // 10
    with pq.ParquetWriter(folder / "pairs.parquet", pq.read_schema(parts[0])) as writer:
        for part in parts[: -(-wanted // ROWS_PER_PART)]:
            writer.write_table(pq.read_table(part)[:wanted])
    target = folder / "scores.parquet"
    counts = predict_file(
        Predictor.load(folder / "run"), folder / "pairs.parquet", target, overwrite=True
    )
    return counts["rows"], f"{counts['unseen_user']} unknown users"


def exact(folder: Path, rows: int, options: Any) -> Done:
    return _lists(folder, EXACT_USERS, "exact.jsonl", {})


def two_stage(folder: Path, rows: int, options: Any) -> Done:
    done, notes = _lists(folder, MANY_USERS, "lists.jsonl", {"retrieve": RETRIEVE})
    found = [_items(folder / name) for name in ("exact.jsonl", "lists.jsonl")]
    shares = [len(best & found[1][user]) / len(best) for user, best in found[0].items()]
    return done, f"recall@{K} {np.mean(shares):.4f} of {len(shares)} users; {notes}"


def _lists(folder: Path, users: int, name: str, more: dict[str, Any]) -> Done:
    from recsys_moe.inference.files.recommend import recommend_file
    from recsys_moe.inference.predictor import Predictor

    start = time.process_time()
    predictor = Predictor.load(folder / "run")
    ids = predictor.users.ids[:: max(1, len(predictor.users.ids) // MANY_USERS)]
    pq.write_table(pa.table({"user": ids[:users]}), folder / "users.parquet")
    loaded = time.process_time() - start
    retrieve = min(more.get("retrieve", 0), len(predictor.items.ids) - 1)
    options = {"retrieve": retrieve} if retrieve else {}
    counts = recommend_file(
        predictor,
        folder / "users.parquet",
        folder / name,
        min(K, len(predictor.items.ids) // 2),
        exclude_seen=True,
        overwrite=True,
        **options,
    )
    return counts["users"], f"{loaded:.1f} s of them to load the model"


def _items(path: Path) -> dict[str, set[Any]]:
    with path.open(encoding="utf-8") as stream:
        lists = map(json.loads, stream)
        return {one["user"]: {item["item"] for item in one["items"]} for one in lists}


STAGES: dict[str, Callable[[Path, int, Any], Done]] = {
    "write": write,
    "prepare": prepare,
    "fit": train,
    "predict": predict,
    "exact": exact,
    "two-stage": two_stage,
}


def show(found: list[dict[str, Any]]) -> None:
    """A table for people, and the targets: peaks, and processor time per row by size."""
    rows = [{**row, "each": 1e6 * float(row["processor"]) / int(row["done"])} for row in found]
    columns = {"rows": "{rows}", "stage": "{stage}", "done": "{done}", "s": "{seconds}"}
    columns |= {"processor s": "{processor}", "processor s / 10^6": "{each:.1f}"}
    common.table({**columns, "peak MB": "{peak_mb}", "notes": "{notes}"}, rows)
    peak = max(int(row["peak_mb"]) for row in rows)
    targets = [common.target("peak of all stages", peak, MOST_MB, " MB")]
    for stage in STAGES:
        each = [row["each"] for row in rows if row["stage"] == stage]
        if len(each) > 1:
            growth = each[-1] / each[0]
            targets.append(common.target(f"{stage}: largest / smallest", growth, MOST_GROWTH))
    common.report("scale", {"stages": found}, targets)


if __name__ == "__main__":
    main()
