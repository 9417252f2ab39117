"""Convert a trained encoder's feed-forward blocks into experts and distil it.

    python -m examples.moebert.train --data DIR --teacher TEACHER --router moesart --k 2 --seed 0

TEACHER is a checkpoint folder, fine-tuned for the task (examples.moebert.teacher makes one). DIR
holds the task's files; the command downloads nothing. The same command resumes a stopped run, and
prints the result of a finished one. See research/examples.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import torch

from examples.common.figures import draw_curves
from examples.common.outputs import write_json
from examples.common.runs import (
    Data,
    add_router_options,
    chosen_router,
    command,
    finished,
    fit,
    guarded,
    losses_by_epoch,
    router_settings,
)
from examples.moebert import checkpoint
from examples.moebert.convert import convert
from examples.moebert.distance import dense, distances, sizes
from examples.moebert.encoder import Encoder
from examples.moebert.importance import AT_ONCE, importance
from examples.moebert.module import EVAL_ROWS, StudentModule
from examples.moebert.rows import Batches, Splits
from examples.moebert.settings import TASKS, Student, student
from examples.moebert.teacher import add_options as add_shared
from recsys_moe.errors import ConfigError
from recsys_moe.routers import find_router


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    return guarded(lambda: _main(parser().parse_args(argv)))


def _main(options: argparse.Namespace) -> None:
    settings = settings_of(options, {"router": options.router}, options.seed)
    out = options.out or Path("runs/moebert") / run_name(settings)
    result = distil(settings, options.data, out, options.device)
    draw_curves(out, "curves", {settings.router: [losses_by_epoch(out)]})
    print(json.dumps(result) if options.json else in_words(result, out))


def distil(settings: Student, data: Path, out: Path, device: str = "auto") -> dict[str, Any]:
    """Distil or resume the run at `out`; its result on the test split.

    Raises ConfigError, DataError, and RunError where the loss is not finite.
    """
    if (there := finished(settings, out)) is not None:
        return there
    task = TASKS[settings.task]
    teacher, words = checkpoint.load(Path(settings.teacher), task.classes)
    splits, _ = task.load(data, words)
    L.seed_everything(settings.seed, verbose=False)
    chosen = possible(settings, teacher)  # refuses impossible sizes
    scores = _scores(settings, teacher, splits, out.parent)
    model = convert(teacher, scores, chosen, **sizes(settings, teacher))
    _, converted = distances({"converted": model}, teacher, splits.test)
    module = StudentModule(settings, model, teacher)
    found = fit(settings, module, Data(splits, settings, Batches, EVAL_ROWS), out, device=device)
    every = {"distilled": model, "dense": dense(model, teacher, scores, settings, chosen)}
    known = {name: one.cpu() for name, one in every.items() if one is not None}
    accuracy, apart = distances(known, teacher.cpu(), splits.test)
    own = {"k": chosen.get("k"), **sizes(settings, teacher), "teacher_accuracy": accuracy}
    result = {**dataclasses.asdict(settings), **own, **found, **converted, **apart}
    write_json(out / "result.json", result)
    return result


def _scores(settings: Student, teacher: Encoder, splits: Splits, folder: Path) -> list[Any]:
    """Importance on the dev set, computed once for all runs of a folder."""
    path = folder / f"importance-{settings.task}-{settings.teacher_sha256[:12]}.safetensors"
    if (there := checkpoint.load_scores(path)) is not None:
        return there
    scores = importance(teacher, Batches(splits.val, AT_ONCE))
    checkpoint.save_scores(path, scores)
    return scores


def possible(settings: Student, teacher: Encoder) -> dict[str, Any]:
    """Name and settings of the router. Raises ConfigError for sizes that do not fit the teacher."""
    chosen = _router(settings)
    blank = [torch.zeros(teacher.sizes.intermediate_size)] * len(teacher.layers)
    convert(teacher, blank, chosen, **sizes(settings, teacher))
    return chosen


def _router(settings: Student) -> dict[str, Any]:
    """Name and settings. Raises ConfigError for a penalty that could do nothing."""
    chosen = chosen_router(settings.router, settings.k, settings.router_settings)
    if chosen["name"] == "hash":
        chosen = {"seed": settings.seed * 1000, **chosen}
    config = find_router(settings.router).Config.model_validate(chosen)
    for option, name in (("trimmed-lasso", "trimmed_lasso"), ("balance", "switch")):
        weight = getattr(settings, option.replace("-", "_"))
        if weight and (why := config.idle_penalties.get(name)):
            raise ConfigError(f"--{option} must be 0 with router {settings.router}, which {why}")
    return chosen


def run_name(settings: Student) -> str:
    """Default folder name."""
    return f"{settings.task}-{settings.router.replace(':', '.')}-k{settings.k}-seed{settings.seed}"


def in_words(result: dict[str, Any], out: Path) -> str:
    """The result as text."""
    lost = 100 * (result["teacher_accuracy"] - result["distilled"]["accuracy"])
    apart = result["distilled"]
    return (
        f"{result['router']} on {result['task']}: accuracy {100 * apart['accuracy']:.2f}%, "
        f"{lost:.2f} points below the teacher's {100 * result['teacher_accuracy']:.2f}%; the "
        f"teacher's answer on {100 * apart['agreement']:.2f}% of the texts, symmetric KL "
        f"{apart['kl']:.4f} (converted and not distilled: {result['converted']['kl']:.4f})\n{out}"
    )


def parser() -> argparse.ArgumentParser:
    """The options of a run."""
    parser = command("examples.moebert.train", __doc__)
    add_options(parser)
    parser.add_argument("--teacher", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--router", default="moesart", help="of `recsys-moe routers`")
    parser.add_argument("--out", type=Path, help="folder to create or to resume")
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of a run and of a study."""
    add_shared(parser)
    add_router_options(parser, "token")
    parser.add_argument("--units", type=int, help="of an expert")
    parser.add_argument("--share", type=int, help="units that all experts have")
    parser.add_argument("--distill", type=float, help="weight of the distance to the teacher")
    parser.add_argument("--balance", type=float, help="weight of the load balance")


def settings_of(options: argparse.Namespace, contender: dict[str, Any], seed: int) -> Student:
    """Of a student of the teacher that the options name. Raises ConfigError."""
    if not (options.teacher / checkpoint.WEIGHTS).exists():
        raise ConfigError(f"--teacher {options.teacher} has no {checkpoint.WEIGHTS}; train one")
    sha256 = checkpoint.sha256(options.teacher)
    return student_of(options, contender, seed, teacher=str(options.teacher), teacher_sha256=sha256)


def student_of(
    options: argparse.Namespace, contender: dict[str, Any], seed: int, **teacher: str
) -> Student:
    """The task's defaults, over them the contender, over it the options. Raises ConfigError."""
    names = (
        *("epochs", "patience", "lr", "batch_size", "weight_decay", "k", "experts", "units"),
        *("share", "distill", "balance", "trimmed_lasso"),
    )
    typed = {name: value for name in names if (value := getattr(options, name)) is not None}
    own = {**contender, **typed, "router_settings": router_settings(options.set)}
    return student(options.task, **own, **teacher, seed=seed)


if __name__ == "__main__":
    sys.exit(main())
