"""One run of the comparison: `recsys-moe fit`, then `evaluate` on test, then its row."""

from __future__ import annotations

import csv
import json
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks import common
from recsys_moe.config.files import find_config, merge_all, read_config_file
from recsys_moe.routers import find_router
from research.routers.logs import LOGS
from research.routers.rows import Job, Row

BASES = {"ml-100k": "movielens_100k", "ml-1m": "movielens_1m"}
"""By raw log, the shipped configuration under each setting; its early stopping is that of the
comparison."""
SMALL_LR = 4e-3
"""Of movielens_100k; on other data the rates of settings stand to theirs as there."""
FAILED = 1
"""Exit code of a training that came to no model, by a loss of NaN for example."""


def config_of(job: Job, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The sections that differ from the shipped configuration are those of the setting."""
    base = read_config_file(find_config(BASES[LOGS[job.log].raw]))
    base["model"].pop("router")
    base.pop("tasks")
    weights = zip(LOGS[job.log].tasks, job.weights.split(","), strict=True)
    own = {"model": {"router": {"name": job.router}}, "trainer": {"seed": job.seed}}
    if job.router == "moesart":
        own["model"]["router"] = {"name": "moesart", "temperature": 1.0}
    tasks = {"tasks": {task: {"weight": float(weight)} for task, weight in weights}}
    setting = dict(settings[job.router][job.setting] or {})
    if "lr" in (optim := setting.get("optim", {})):
        setting["optim"] = {**optim, "lr": optim["lr"] * base["optim"]["lr"] / SMALL_LR}
    return merge_all([base, own, setting, tasks])


def finish(job: Job, settings: Mapping[str, Mapping[str, Any]], data: Path, out: Path) -> Row:
    """Train, or continue what was interrupted, and evaluate; the run folder goes afterwards.

    Raises RuntimeError where a command fails for another reason than its training.
    """
    run = out / job.folder
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{job.folder}.yaml"
    file.write_text(yaml.safe_dump(config_of(job, settings)), encoding="utf-8")
    is_resumed = (run / "checkpoints").exists()
    before = _processor_minutes()
    words = ["--data", data / job.log, "--config", file, "--out", run, "--resume", "auto"]
    code, val = command("fit", *words, "--json")
    minutes = _processor_minutes() - before
    figures: dict[str, float | None] = {"minutes": minutes, "resumed": float(is_resumed)}
    if code == 0:
        code, test = command("evaluate", run, "--split", "test", "--data", data / job.log, "--json")
        figures |= _reached(val, "val.") | _reached(test, "")
        figures |= _costs(run, job, settings) | {"best_epoch": val["epoch"]}
        figures["experts_inference"] = test["experts_per_example"]
    shutil.rmtree(run, ignore_errors=True)
    file.unlink()
    return Row(job, figures, commit())


def _reached(found: dict[str, Any], split: str) -> dict[str, float | None]:
    watch, rating = found["tasks"]["watch"], found["tasks"].get("rating", {})
    names = {"loss": found["loss"], "watch.auc": watch["auc"], "rating.mse": rating.get("mse")}
    return {f"{split}{name}": value for name, value in names.items()}


def _costs(run: Path, job: Job, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Epochs, and experts evaluated per example in training."""
    with (run / "metrics.csv").open(newline="", encoding="utf-8") as stream:
        lines = list(csv.DictReader(stream))
    model = config_of(job, settings)["model"]
    shares = [float(line["train/evaluated_share"] or 0) for line in lines]
    experts = model["num_experts"] * find_router(model["router"]["name"]).passes
    return {"epochs": len(lines), "experts_training": statistics.fmean(shares) * experts}


def command(*words: object) -> tuple[int, dict[str, Any]]:
    """Exit code and what `recsys-moe` prints as JSON. Raises RuntimeError for codes above 1."""
    line = [sys.executable, "-m", "recsys_moe", *map(str, words)]
    run = subprocess.run(line, capture_output=True, text=True, env=common.environment())
    if run.returncode not in (0, FAILED):
        raise RuntimeError(
            f"{' '.join(line[2:])}: exit code {run.returncode}\n{run.stderr[-2000:]}"
        )
    return run.returncode, json.loads(
        run.stdout
    ) if "--json" in words and run.returncode == 0 else {}


def commit() -> str:
    """Of the code and configurations that run; that rows have been written is no change of them."""
    says = partial(subprocess.run, cwd=common.ROOT, capture_output=True, text=True)
    head = says(["git", "rev-parse", "--short=8", "HEAD"]).stdout.strip() or "unknown"
    changed = says(["git", "status", "--porcelain", "recsys_moe", "configs", "research/routers"])
    return f"{head}-dirty" if changed.stdout.strip() else head


def _processor_minutes() -> float:
    """Of all commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) / 60
