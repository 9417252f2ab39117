"""Routers times seeds on one teacher, one run after another: the mechanism of the paper's Table 2.

    python -m examples.moebert.compare --data DIR --out OUT --seeds 5            # film titles
    python -m examples.moebert.compare --task rte --data RTE --teacher TEACHER --out OUT

Without --teacher the command first trains a small teacher in OUT/teacher. The same command resumes
a stopped study and repeats no finished run. OUT holds the runs, results.csv with a row per finished
run, table.md, and figure.*.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.common.runs import command, guarded
from examples.common.tables import check_failures, draw_runs, finished_runs, report, run_study
from examples.moebert import checkpoint
from examples.moebert.encoder import Encoder
from examples.moebert.settings import TASKS, Student, Teacher, teacher
from examples.moebert.table import row, table
from examples.moebert.teacher import SCRATCH, small_sizes, teach
from examples.moebert.train import add_options, distil, possible, settings_of, student_of
from recsys_moe.errors import ConfigError

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
    failures = run_study(
        asked, lambda run, out: distil(run, options.data, out, options.device), row, options.out
    )
    if rows := [row(run) for run in finished_runs(options.out)]:
        draw_runs(options.out)
        report(rows, table(rows, labels), options.out, as_json=options.json)
    check_failures(failures, len(asked))


def check(labels: Sequence[str], options: argparse.Namespace, scratch: Teacher) -> None:
    """Raise ConfigError for an impossible student, before anything is trained."""
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


def parser() -> argparse.ArgumentParser:
    """The options of a study: those of a run, for every run."""
    parser = command("examples.moebert.compare", __doc__)
    add_options(parser)
    parser.add_argument("--teacher", type=Path, help="checkpoint folder")
    parser.add_argument("--teacher-epochs", type=int, default=SCRATCH["epochs"], help="at most")
    parser.add_argument("--routers", default=",".join(CONTENDERS), help="a,b,c")
    parser.add_argument("--seeds", type=int, default=5, help="runs per router")
    parser.add_argument("--out", type=Path, required=True, help="folder to create or to resume")
    return parser


if __name__ == "__main__":
    sys.exit(main())
