"""What a run's figures say, in words: what to look at first, worst first."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from recsys_moe.artifact.metrics import CALIBRATION_BINS
from recsys_moe.artifact.monitor import LOSS
from recsys_moe.lab.report.experts import ExpertLoad, Likeness
from recsys_moe.lab.report.learning import Consistency, LearningCurves
from recsys_moe.lab.report.quality import Quality

DOMINANT = 0.5
"""Share of first choices above which one expert is said to dominate."""
STEADY = 0.8
"""Share of examples that should keep their top expert in the last epoch."""
PAIRS = 3
"""Twins that are named; a model that has just begun has dozens."""
MISCALIBRATED = 0.05
WORSE_AT_END = 1.02
"""Last validation loss over the best one, from which training went on too long."""


@dataclass(frozen=True)
class Finding:
    """One sentence and where its number stands."""

    level: Literal["warning", "note"]
    text: str
    figure: str = ""
    """Name of the figure that shows it, without ending; empty where none does."""


warning, note = partial(Finding, "warning"), partial(Finding, "note")


def slug(name: str) -> str:
    """A task's name for file names; another name gives another one."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def percent(share: float) -> str:
    """0.00123 -> 0.1%; small shares keep one digit that is not 0."""
    value = 100 * share
    if value == 0 or value >= 0.05:
        return f"{value:.1f}%"
    return f"{value:.1g}%" if value >= 1e-3 else "less than 0.001%"


def join(names: Iterable[object]) -> str:
    """1, 2 and 3"""
    words = [str(name) for name in names]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def named(experts: Sequence[object]) -> str:
    """expert 3, or experts 3 and 4; at least one."""
    return f"{'expert' if len(experts) == 1 else 'experts'} {join(experts)}"


def expert_findings(load: ExpertLoad) -> Iterator[Finding]:
    """Idle experts, experts without weight, and an expert that takes most; one sentence a kind."""
    if load.idle:
        visits = join(percent(load.either[e]) for e in load.idle)
        text = f"Idle: {named(load.idle)}, visited by {visits} of examples"
        even = percent(max(load.even.values(), default=0.0))
        yield warning(f"{text} (an even share would be {even} per task).", "load")
    if load.light:
        text = f"Visited, but hardly with any weight: {named(load.light)}."
        yield warning(text, "load")
    if busy := [text for task, first in load.first.items() for text in _dominant(task, first)]:
        yield warning(f"First choice of most examples: {join(busy)}.", "load")
    nobody = {task: 1 - sum(first) for task, first in load.first.items()}
    if left := [f"{percent(share)} for {task}" for task, share in nobody.items() if share > 1e-6]:
        yield warning(f"Examples that no expert takes: {join(left)}.", "load")
    if elsewhere := [text for task in load.visits for text in _spared(load, task)]:
        yield note(f"Not used by all tasks: {'; '.join(elsewhere)}.", "load")


def _dominant(task: str, first: Sequence[float]) -> Iterator[str]:
    busiest = max(range(len(first)), key=first.__getitem__)
    if len(first) > 2 and first[busiest] > DOMINANT:
        yield f"expert {busiest} ({percent(first[busiest])} for {task})"


def _spared(load: ExpertLoad, task: str) -> Iterator[str]:
    """Experts that the task spares and another one does not."""
    visits = load.visits[task]
    shared = (e for e in range(len(visits)) if e not in load.idle)
    if spared := [f"{e} ({percent(visits[e])})" for e in shared if task in load.spared_by(e)]:
        yield f"{task} hardly uses {named(spared)}"


def likeness_findings(alike: Likeness) -> Iterator[Finding]:
    if alike.twins:
        yield warning(f"Nearly identical in their outputs (cosine): {pairs(alike)}.", "likeness")
    if alike.silent:
        text = f"Answering 0 to every example: {named(alike.silent)}."
        yield warning(text, "likeness")


def pairs(alike: Likeness) -> str:
    """The twins with the largest cosines, and the number of the others."""
    first = [f"{a} and {b} ({cosine:.3f})" for a, b, cosine in alike.twins[:PAIRS]]
    more = len(alike.twins) - len(first)
    words = "" if not more else ", and 1 more pair" if more == 1 else f", and {more} more pairs"
    return f"experts {', '.join(first)}{words}"


def consistency_findings(steady: Consistency) -> Iterator[Finding]:
    moving = [
        f"{percent(same[-1])} of examples for {task}"
        for task, same in steady.same.items()
        if same and same[-1] < STEADY
    ]
    if moving:
        text = f"Routing is not settled: in epoch {steady.epochs[-1]} only {join(moving)}"
        yield warning(f"{text} kept their top expert.", "consistency")


def learning_findings(curves: LearningCurves, asked: int) -> Iterator[Finding]:
    """`asked`: trainer.max_epochs."""
    last, best, lowest = curves.epochs[-1], curves.best_epoch, min(curves.val_loss)
    lowest_at = curves.epochs[curves.val_loss.index(lowest)]
    if best == last == asked:
        moves = "falling" if curves.monitor == LOSS else "improving"
        text = f"The validation {curves.monitor} was still {moves} in the last epoch ({last}):"
        yield note(f"{text} more epochs may help.", "learning")
    if curves.val_loss[-1] > WORSE_AT_END * lowest:
        text = f"The validation loss rose from {lowest:.4f} (epoch {lowest_at}) to"
        text = f"{text} {curves.val_loss[-1]:.4f} (epoch {last}); the model is that of epoch"
        yield note(f"{text} {best}.", "learning")


def quality_findings(task: str, quality: Quality, behind: Sequence[str]) -> Iterator[Finding]:
    """Baselines that win, `behind`, or else guessing that nearly does; probabilities that are off.

    `behind`: the lines of `baselines.missed` for the task.
    """
    shown = f"{'roc' if quality.roc else 'error'}-{slug(task)}"
    yield from (warning(f"{line}.", shown) for line in behind)
    if not behind and quality.roc and quality.roc.auc < 0.55:
        text = f"{task} is hardly better than chance: AUC {quality.roc.auc:.3f}"
        yield warning(f"{text} (0.5 is guessing).", shown)
    if quality.reliability:
        error = quality.reliability.error.get("calibrated", quality.reliability.error["raw"])
        if error > MISCALIBRATED:
            text = f"Probabilities of {task} are off by {100 * error:.1f} points on average"
            yield warning(f"{text} ({CALIBRATION_BINS} bins).", f"calibration-{slug(task)}")


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: finding.level != "warning")


def in_short(findings: Sequence[Finding]) -> str:
    warnings = sum(finding.level == "warning" for finding in findings)
    words = "1 thing stands" if warnings == 1 else f"{warnings} things stand"
    return f"{words} out." if warnings else "Nothing stands out."
