"""Fixed and learned task weights on equal terms: runs what is missing, one run at a time.

    python -m research.weighting --data DIR --out DIR [--hours 2]   # go on, then write the page
    python -m research.weighting                                    # the page alone

DIR of `--data` has the prepared folders `ml-100k` and `ml-1m`; the log with tasks that compete is
made in `--out`. A row is written to research/results/weighting.csv when its run is finished; a run
that was interrupted goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import common
from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import RunError
from recsys_moe.train.fit import fit
from research.weighting.log import write_log
from research.weighting.page import PAGE, write_page
from research.weighting.rows import ROWS, Job, Row, append, config_of, jobs, read_rows


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="has ml-100k and ml-1m, prepared")
    parser.add_argument("--out", type=Path, help="for runs while they train")
    parser.add_argument("--rows", type=Path, default=ROWS, help="finished runs")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the tables go")
    parser.add_argument("--hours", type=float, default=float("inf"), help="start none after these")
    options = parser.parse_args(argv)
    if (options.data is None) != (options.out is None):
        parser.error("--data and --out must be given together")
    if options.out is not None:
        run_all(options)
    write_page(read_rows(options.rows), options.page)


def run_all(options: argparse.Namespace) -> None:
    end = time.monotonic() + 3600 * options.hours
    options.out.mkdir(parents=True, exist_ok=True)
    conflict = options.out / "conflict"
    if not (conflict / "schema.json").exists():
        write_log(conflict)
    for job in jobs():
        data = conflict if job.data == "conflict" else options.data / job.data
        if job in read_rows(options.rows) or not data.is_dir():
            continue
        if time.monotonic() > end:
            return
        row = finish(job, data, options.out)
        append(job, row, common.commit() or "unknown", options.rows)
        shown = " ".join(f"{name}={value:.4g}" for name, value in row.items() if value)
        print(time.strftime("%H:%M"), job.folder, shown, flush=True)


def finish(job: Job, data: Path, out: Path) -> Row:
    """Train, or continue what was interrupted, and evaluate; the run folder goes afterwards.

    A training that came to no model, by a loss of NaN for example, has minutes alone.
    """
    run, config = out / job.folder, parse_config(config_of(job))
    is_resumed = (run / "checkpoints").exists()
    before = time.process_time()
    row: Row = {"resumed": float(is_resumed)}
    try:
        val = fit(config, data, run, resume="auto")
        row |= {"val.loss": val["loss"], "best_epoch": val["epoch"]}
        row |= reached(evaluate_artifact(run, "test", data)) | learned(run, val["epoch"])
    except RunError as error:
        print(f"{job.folder}: {error}", flush=True)
    shutil.rmtree(run, ignore_errors=True)
    return row | {"minutes": (time.process_time() - before) / 60}


def reached(found: dict[str, Any]) -> Row:
    """Of a binary task, then of a regression."""
    binary, regression = found["tasks"].values()
    return {"loss": found["loss"], "auc": binary["auc"], "mse": regression["mse"]}


def learned(run: Path, best: int) -> Row:
    """Epochs, and the factors of the epoch `best`, from 1 on."""
    with (run / "metrics.csv").open(newline="", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    names = [name for name in lines[0] if name.startswith("train/") and name.endswith("/factor")]
    factors = {name: float(lines[best - 1][name]) for name in names}
    order = {name.removeprefix("train/").removesuffix("/factor"): v for name, v in factors.items()}
    first = [order[task] for task in ("like", "watch") if task in order]
    second = [order[task] for task in ("score", "rating") if task in order]
    found = {f"factor.{i}": value for i, value in enumerate([*first, *second])}
    return {"epochs": float(len(lines)), **found}


if __name__ == "__main__":
    main()
