"""The trials of a study as tables, and its best configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from recsys_moe.artifact import epoch_metrics
from recsys_moe.artifact.monitor import LOSS, Monitor, find_monitor
from recsys_moe.config.files import merge_all, nested
from recsys_moe.config.settings import parse_config
from recsys_moe.files import write_json, write_text
from recsys_moe.lab.jobs.lab_run import LabRun
from recsys_moe.lab.jobs.plan_file import Raw
from recsys_moe.lab.tune.plan import StudyPlan
from recsys_moe.lab.tune.study import Entry
from recsys_moe.schema import Schema

BEST_FILE, SETTINGS_FILE = "best.yaml", "settings.yaml"
SHOWN = 10


def trial_run(out: Path, number: int) -> LabRun:
    """The run of a trial."""
    return LabRun(out, "trials", f"{number:04d}")


def trial_config(plan: StudyPlan, params: dict[str, Any]) -> str:
    """The resolved configuration of a trial, as YAML. Raises ConfigError."""
    changes = [nested(key, value) for key, value in params.items()]
    return parse_config(merge_all([plan.config, *changes])).to_yaml()


class Kept(NamedTuple):
    """The progress of a run."""

    losses: dict[int, float]
    """By finished epoch, the validation loss of the epoch kept until then."""
    epoch: int | None
    """The kept epoch; None before the end of the first."""


def kept(run: Path, monitor: Monitor) -> Kept:
    """Read from metrics.csv, which may not be there yet. Raises DataError where it is damaged."""
    path = run / epoch_metrics.EPOCH_METRICS
    epochs = epoch_metrics.read_epochs(path) if path.is_file() else {}
    loss_of = epoch_metrics.validation_losses(epochs)
    best, losses, chosen = monitor.worst, {}, None
    for epoch, row in epochs.items():
        value = row[monitor.column]
        if value is not None and monitor.is_better(value, best):
            best, chosen = value, epoch
        losses[epoch] = loss_of[chosen or epoch]
    return Kept(losses, chosen)


def collect(plan: StudyPlan, schema: Schema, entries: Sequence[Entry], out: Path) -> Raw:
    """The content of trials.json, from the study and the run folders."""
    monitor = find_monitor(plan.config["trainer"]["monitor"], schema)
    trials = [_trial(entry, out, monitor) for entry in entries]
    complete = _complete(trials)
    return {
        "data": schema.name,
        "protocol": schema.protocol,
        "router": plan.router,
        "monitor": monitor.name,
        "weights": {task.name: plan.config["tasks"][task.name]["weight"] for task in schema.tasks},
        "study": plan.study,
        "storage": plan.storage,
        "sampler": plan.sampler,
        "pruner": plan.pruner,
        "space": {key: dimension.to_json() for key, dimension in plan.space.items()},
        "best": complete[0]["number"] if complete else None,
        "trials": trials,
        "notes": _notes(plan, trials),
    }


def _trial(entry: Entry, out: Path, monitor: Monitor) -> Raw:
    """A trial and where its numbers come from; `run` and `log` are below the study's folder."""
    run = trial_run(out, entry.number)
    losses, best_epoch = kept(run.folder, monitor)
    folder, log = run.places
    return {
        "number": entry.number,
        "given": entry.given,
        "state": entry.state,
        # Of the kept epoch, of a trial that has not come to its end that until then.
        "loss": next(reversed(losses.values()), None) if entry.state == "running" else entry.loss,
        "best_epoch": best_epoch,
        "epochs": len(losses),
        "params": entry.params,
        "run": folder,
        "log": log,
        "test": run.evaluation("test"),
    }


def _complete(trials: Sequence[Raw]) -> list[Raw]:
    """Fully trained trials, the lowest validation loss first."""
    complete = [t for t in trials if t["state"] == "complete" and t["loss"] is not None]
    return sorted(complete, key=lambda trial: trial["loss"])


def _notes(plan: StudyPlan, trials: Sequence[Raw]) -> list[str]:
    """Notes on the numbers."""
    complete = _complete(trials)
    monitor = plan.config["trainer"]["monitor"]
    kept_at = "" if monitor == LOSS else f", each at its epoch with the best validation {monitor}"
    return [
        f"The best trial has the lowest validation loss{kept_at}; "
        "test losses are not used to choose.",
        *_given_notes(plan, trials),
        *(_edge_notes(plan, complete[0]["params"]) if complete else ()),
    ]


def _given_notes(plan: StudyPlan, trials: Sequence[Raw]) -> Iterator[str]:
    """Whether the given configuration is a trial."""
    if any(trial["given"] for trial in trials):
        yield "Trial 0 is the given configuration."
    elif plan.outside:
        keys = ", ".join(plan.outside)
        yield f"The given configuration is not a trial: its {keys} is outside the search space."


def _edge_notes(plan: StudyPlan, params: dict[str, Any]) -> Iterator[str]:
    """Best values at an edge of the search space."""
    for key, value in params.items():
        dimension = plan.space[key]
        if (edge := dimension.edge(value)) is not None:
            yield (
                f"The best {key}, {value:.4g}, is at the {edge} edge of {dimension}; "
                "widen it with --space, in another --out."
            )


def write(results: Raw, plan: StudyPlan, out: Path) -> None:
    """trials.json and trials.csv, best.yaml and settings.yaml."""
    write_json(out / "trials.json", results)
    write_text(out / "trials.csv", csv_text(results))
    if results["best"] is not None:
        best = _complete(results["trials"])[0]
        kept_by = "" if results["monitor"] == LOSS else f", the best by {results['monitor']}"
        header = (
            f"# Trial {best['number']} of a study of {plan.router} on {results['data']}: "
            f"validation loss {best['loss']} at epoch {best['best_epoch']}{kept_by}; "
            f"its run folder is {best['run']}.\n"
        )
        write_text(out / BEST_FILE, header + trial_config(plan, best["params"]))
        settings = merge_all([nested(key, value) for key, value in best["params"].items()])
        text = yaml.safe_dump({plan.router: settings}, sort_keys=False)
        write_text(out / SETTINGS_FILE, header + text)


def csv_text(results: Raw) -> str:
    """A line per trial."""
    keys, first = list(results["space"]), ["number", "state", "loss", "best_epoch", "epochs"]
    lines = [
        {**trial, **trial["params"], "test_loss": (trial["test"] or {}).get("loss")}
        for trial in results["trials"]
    ]
    columns = [*first, "given", *keys, "test_loss", "run", "log"]
    return pd.DataFrame(lines, columns=columns, dtype=object).to_csv(index=False)


def summary(results: Raw, out: Path) -> str:
    """A table of the best trials, and the notes."""
    states = [trial["state"] for trial in results["trials"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    lines = [f"{results['router']} on {results['data']}: {len(states)} trials, {counts}"]
    if ranked := _complete(results["trials"])[:SHOWN]:
        table = pd.DataFrame(
            {
                "trial": f"{trial['number']:04d}",
                "val loss": f"{trial['loss']:.4f}",
                "test loss": f"{trial['test']['loss']:.4f}" if trial["test"] else "-",
                "epoch": trial["best_epoch"] or "-",
                **{key: _short(value) for key, value in trial["params"].items()},
            }
            for trial in ranked
        )
        lines += ["", table.to_string(index=False), "", f"best: {out / BEST_FILE}"]
    return "\n".join([*lines, "", *results["notes"]])


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
