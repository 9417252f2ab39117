"""Routers times seeds on one teacher, one run after another: the mechanism of the paper's Table 2.

    python -m examples.moebert.compare --data DIR --out OUT --seeds 5            # film titles
    python -m examples.moebert.compare --task rte --data RTE --teacher TEACHER --out OUT

Without --teacher a small one is trained first, in OUT/teacher. Starting it again repeats no
finished run and goes on with the one that was stopped. OUT holds the runs, results.csv with a row
per finished one, table.md, and figure.*.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.common.figures import draw_curves
from examples.common.outputs import write
from examples.common.runs import guarded, losses_by_epoch
from examples.common.tables import finished_runs
from examples.moebert import checkpoint
from examples.moebert.encoder import Encoder
from examples.moebert.settings import TASKS, Student, Teacher, teacher
from examples.moebert.table import table, write_results
from examples.moebert.teacher import SCRATCH, small_sizes, teach
from examples.moebert.train import add_options, distil, possible, settings_of, student_of
from recsys_moe.errors import ConfigError, RunError

CONTENDERS = ("topk", "hash", "moesart")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; its exit code."""
    return guarded(lambda: _main(parser().parse_args(argv)))


def _main(options: argparse.Namespace) -> None:
    if options.seeds < 1:
        raise ConfigError(f"--seeds must be >= 1, got {options.seeds}")
    labels = options.routers.split(",")
    own = teacher(options.task, **{**SCRATCH, "epochs": options.teacher_epochs})
    check(labels, options, own)
    if options.teacher is None:
        options.teacher = options.out / "teacher"
        teach(own, options.data, options.teacher, device=options.device)
    asked = planned(labels, options)
    failures = run_all(asked, options)
    rows = write_results(options.out)
    if rows:
        curves: dict[str, list[list[float]]] = {}
        for run in finished_runs(options.out):
            folder = options.out / "runs" / f"{run['label']}-seed{run['seed']}"
            curves.setdefault(run["label"], []).append(losses_by_epoch(folder))
        draw_curves(options.out, "figure", curves)
        text = table(rows, labels)
        write(options.out / "table.md", text.encode())
        print(json.dumps(rows) if options.json else text, end="\n" if options.json else "")
    if failures:
        raise RunError(f"{len(failures)} of {len(asked)} runs failed: {'; '.join(failures)}")


def check(labels: Sequence[str], options: argparse.Namespace, scratch: Teacher) -> None:
    """Raise ConfigError for a student that cannot be, before a teacher or others are trained."""
    asked = [student_of(options, {"router": label}, options.seed) for label in labels]
    if options.teacher is None:
        reference = Encoder(small_sizes(1, scratch))
    else:
        reference, _ = checkpoint.load(options.teacher, TASKS[options.task].classes)
    for settings in asked:
        possible(settings, reference)


def planned(labels: Sequence[str], options: argparse.Namespace) -> list[tuple[Path, Student]]:
    """The folder and settings of each run: all routers of the first seed, then of the next."""
    return [
        (
            options.out / "runs" / f"{label}-seed{seed}",
            settings_of(options, {"router": label}, seed),
        )
        for seed in range(options.seed, options.seed + options.seeds)
        for label in labels
    ]


def run_all(asked: Sequence[tuple[Path, Student]], options: argparse.Namespace) -> list[str]:
    """Train what is not finished; what failed, in words. Every finished run is in results.csv."""
    failures = []
    for number, (folder, settings) in enumerate(asked, 1):
        print(f"run {number} of {len(asked)}: {folder.name}", file=sys.stderr, flush=True)
        try:
            distil(settings, options.data, folder, options.device)
        except RunError as error:
            failures.append(str(error))
        write_results(options.out)
    return failures


def parser() -> argparse.ArgumentParser:
    """The options of a study: those of a run, for every run."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.moebert.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser)
    parser.add_argument("--teacher", type=Path, help="checkpoint folder")
    parser.add_argument("--teacher-epochs", type=int, default=SCRATCH["epochs"], help="at most")
    parser.add_argument("--routers", default=",".join(CONTENDERS), help="a,b,c")
    parser.add_argument("--seeds", type=int, default=5, help="runs per router")
    parser.add_argument("--out", type=Path, required=True, help="folder to create or to go on in")
    return parser


if __name__ == "__main__":
    sys.exit(main())
