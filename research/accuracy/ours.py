"""A finished run of ours as a row of the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.errors import DataError
from recsys_moe.inference.evaluation.ranking import evaluate_ranking
from recsys_moe.lab.compare.epochs import read_epochs
from recsys_moe.lab.compare.run_files import total_seconds
from recsys_moe.lab.jobs.lab_run import LabRun
from research.accuracy.finished import FIGURES, Row, settings_text
from research.accuracy.judge import Judge


def our_row(name: str, run: Path, judge: Judge, facts: dict[str, Any]) -> Row:
    """Its figures on the test split, as `evaluate` and `evaluate --ranking` give them.

    Raises DataError where the run was trained on other data.
    """
    whole = evaluate_artifact(run, "test", judge.folder)
    if not whole["trained_on_these_data"]:
        raise DataError(f"{run} was trained on other data than {judge.folder}; name a run on them")
    watch, rating = (judge.schema.tasks[n].name for n in (judge.watch, judge.rating))
    found = {
        **{name: whole["tasks"][watch][name] for name in ("auc", "bce")},
        "mse": whole["tasks"][rating]["mse"],
    }
    found |= {**evaluate_ranking(run, "test", judge.folder), **judge.loss(found)}
    config = load_artifact(run).config
    return Row(
        name,
        "test",
        config.trainer.seed,
        run_text(run),
        {figure: found[figure] for figure in FIGURES},
        minutes=wall_minutes(run),
        versions="",
        **facts,
    )


def run_text(run: Path) -> str:
    """Which run a row is of, by the name of its folder."""
    return settings_text({"run": run.resolve().name})


def wall_minutes(run: Path) -> float | None:
    """Of its epochs, where it is one of a comparison, which keeps the logs; of other work on the
    machine they hold some too."""
    place = run.resolve()
    seconds = total_seconds(read_epochs(LabRun(place.parents[1], place.parent.name, place.name)))
    return None if seconds is None else round(seconds / 60, 3)
