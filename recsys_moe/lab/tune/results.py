"""The trials of a study as tables, its best configuration, and its curve."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from recsys_moe.config.files import merge_all, nested
from recsys_moe.config.settings import parse_config
from recsys_moe.files import write_json, write_text
from recsys_moe.lab.jobs.lab_run import LabRun
from recsys_moe.lab.tune import curve as tune_curve
from recsys_moe.lab.tune.plan import StudyPlan
from recsys_moe.lab.tune.study import Entry
from recsys_moe.schema import Schema

BEST_FILE, SETTINGS_FILE = "best.yaml", "settings.yaml"
SHOWN = 10


@dataclass(frozen=True)
class TrialRecord:
    """A trial and where its numbers come from."""

    number: int
    state: str
    loss: float | None
    """Lowest validation loss, of a pruned trial that until it was cut."""
    best_epoch: int | None
    epochs: int
    """That were finished."""
    params: dict[str, Any]
    run: str
    """Its run folder, below that of the study; so is `log`."""
    log: str
    test: dict[str, Any] | None
    """What `evaluate --json` prints, where the trial was evaluated on the test split."""


@dataclass(frozen=True)
class Results:
    data: str
    protocol: str
    router: str
    weights: dict[str, float]
    study: str
    storage: str
    sampler: str
    pruner: str
    space: dict[str, Any]
    best: int | None
    """Number of the trial with the lowest validation loss."""
    trials: list[TrialRecord]
    curve: list[tune_curve.Point]
    notes: list[str]


def trial_run(out: Path, number: int) -> LabRun:
    """The run of a trial."""
    return LabRun(out, "trials", f"{number:04d}")


def trial_config(plan: StudyPlan, params: dict[str, Any]) -> str:
    """The resolved configuration of a trial, as YAML. Raises ConfigError."""
    changes = [nested(key, value) for key, value in params.items()]
    return parse_config(merge_all([plan.config, *changes])).to_yaml()


def epoch_losses(run: Path) -> dict[int, float]:
    """Validation loss by finished epoch; empty where there is none yet."""
    metrics = run / "metrics.csv"
    if not metrics.is_file():
        return {}
    with metrics.open(encoding="utf-8", newline="") as stream:
        return {int(row["epoch"]): float(row["val/loss"]) for row in csv.DictReader(stream)}


def collect(plan: StudyPlan, schema: Schema, entries: Sequence[Entry], out: Path) -> Results:
    """Everything that the study and the run folders hold."""
    trials = [_record(entry, out) for entry in entries]
    complete = [t for t in trials if t.state == "complete" and t.loss is not None]
    best = min(complete, key=lambda t: t.loss or 0.0, default=None)
    return Results(
        schema.name,
        schema.protocol,
        plan.router,
        {task: section["weight"] for task, section in plan.config["tasks"].items()},
        plan.study,
        plan.storage,
        plan.sampler,
        plan.pruner,
        {key: dimension.to_json() for key, dimension in plan.space.items()},
        None if best is None else best.number,
        trials,
        _curve(complete),
        _notes(plan, trials, complete),
    )


def _record(entry: Entry, out: Path) -> TrialRecord:
    run = trial_run(out, entry.number)
    losses = epoch_losses(run.folder)
    loss = entry.loss
    if entry.state == "running":
        loss = min(losses.values(), default=None)
    folder, log = run.places
    return TrialRecord(
        entry.number,
        entry.state,
        loss,
        min(losses, key=losses.__getitem__, default=None),
        len(losses),
        entry.params,
        folder,
        log,
        run.evaluation("test"),
    )


def _curve(complete: Sequence[TrialRecord]) -> list[tune_curve.Point]:
    validation = [trial.loss for trial in complete if trial.loss is not None]
    test = [trial.test["loss"] for trial in complete if trial.test is not None]
    return tune_curve.curve(validation, test if len(test) == len(validation) else None)


def _notes(
    plan: StudyPlan, trials: Sequence[TrialRecord], complete: Sequence[TrialRecord]
) -> list[str]:
    """What a reader of the numbers must know."""
    tested = sum(trial.test is not None for trial in complete)
    ended = [trial for trial in trials if trial.state not in ("complete", "running")]
    notes = ["The best trial is that with the lowest validation loss; test losses choose nothing."]
    if tested < len(complete):
        count = f"Only {tested}" if tested else "None"
        notes.append(
            f"{count} of {len(complete)} complete trials are evaluated on the test split, so the "
            "curve is of validation alone; --evaluate-test evaluates them."
        )
    if ended:
        notes.append(f"The curve leaves out {len(ended)} trials that were pruned or diverged.")
    if plan.sampler != "random":
        notes.append(
            "The curve is that of random search for --sampler random alone: later trials of "
            f"{plan.sampler} build on earlier ones."
        )
    return notes


def write(results: Results, plan: StudyPlan, out: Path) -> None:
    """trials.json and trials.csv, best.yaml and settings.yaml, bootstrap.csv."""
    write_json(out / "trials.json", asdict(results))
    write_text(out / "trials.csv", csv_text(results))
    write_text(out / "bootstrap.csv", tune_curve.csv_text(results.curve))
    if results.best is not None:
        best = next(trial for trial in results.trials if trial.number == results.best)
        header = (
            f"# Trial {best.number} of a study of {results.router} on {results.data}: validation "
            f"loss {best.loss} at epoch {best.best_epoch}; its run folder is {best.run}.\n"
        )
        write_text(out / BEST_FILE, header + trial_config(plan, best.params))
        settings = merge_all([nested(key, value) for key, value in best.params.items()])
        text = yaml.safe_dump({plan.router: settings}, sort_keys=False)
        write_text(out / SETTINGS_FILE, header + text)


def plot(results: Results, out: Path) -> None:
    """bootstrap.png and bootstrap.svg, where a trial is complete."""
    if results.curve:
        title = f"Best of s trials: {results.router} on {results.data}"
        files = [out / "bootstrap.png", out / "bootstrap.svg"]
        tune_curve.plot(results.curve, title, files)


def csv_text(results: Results) -> str:
    """A line per trial."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    keys, first = list(results.space), ["number", "state", "loss", "best_epoch", "epochs"]
    writer.writerow([*first, *keys, "test_loss", "run", "log"])
    for t in results.trials:
        values = [t.number, t.state, t.loss, t.best_epoch, t.epochs]
        test = None if t.test is None else t.test["loss"]
        writer.writerow([*values, *(t.params.get(key) for key in keys), test, t.run, t.log])
    return stream.getvalue()


def summary(results: Results, out: Path) -> str:
    """The best trials and where the rest is, for people."""
    states = [trial.state for trial in results.trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    lines = [f"{results.router} on {results.data}: {len(states)} trials, {counts}"]
    ranked = sorted(
        (t for t in results.trials if t.state == "complete"), key=lambda t: t.loss or 0.0
    )
    widths = {key: max(len(key), 10) for key in results.space}
    heads = "".join(f"  {key:>{width}}" for key, width in widths.items())
    if ranked:
        lines += ["", f"trial  val loss  test loss  epoch{heads}"]
    for t in ranked[:SHOWN]:
        test = "-" if t.test is None else f"{t.test['loss']:.4f}"
        cells = "".join(f"  {_short(t.params.get(k)):>{width}}" for k, width in widths.items())
        lines.append(f" {t.number:04d}  {t.loss:8.4f}  {test:>9}  {t.best_epoch or '-':>5}{cells}")
    if ranked:
        lines += ["", f"best: {out / BEST_FILE}   curve: {out / 'bootstrap.png'}"]
    return "\n".join([*lines, "", *results.notes])


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
