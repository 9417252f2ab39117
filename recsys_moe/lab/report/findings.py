"""Findings about a run, in words, warnings first.

Findings are a table of rules per figure: when, how urgent, and the sentence.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from recsys_moe.artifact.monitor import LOSS
from recsys_moe.kinds.curves import CALIBRATION_BINS
from recsys_moe.lab.report.experts import ExpertLoad, Likeness
from recsys_moe.lab.report.learning import Consistency, LearningCurves
from recsys_moe.lab.report.quality import Quality

DOMINANT = 0.5
"""Share of first choices above which an expert dominates."""
STEADY = 0.8
"""Share of examples that should keep their top expert in the last epoch."""
PAIRS = 3
"""Pairs that are named; an untrained model has dozens."""
MISCALIBRATED = 0.05
CHANCE = 0.55
"""AUC below which a model is barely better than random."""
WORSE_AT_END = 1.02
"""Last validation loss over the best one from which training was too long."""

Level = Literal["warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One sentence, and the figure with its number."""

    level: Level
    text: str
    figure: str = ""
    """Name of the figure that shows it, without ending; empty where none does."""


warning, note = partial(Finding, "warning"), partial(Finding, "note")


def _said(figure: str, *rules: tuple[object, Level, str]) -> list[Finding]:
    """Findings of the rules whose condition, the first value, holds."""
    return [Finding(level, text, figure) for holds, level, text in rules if holds]


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


def expert_findings(load: ExpertLoad) -> list[Finding]:
    """Idle experts, experts without weight, dominant experts: one sentence per kind."""
    visits = join(percent(load.either[expert]) for expert in load.idle)
    even = percent(max(load.even.values(), default=0.0))
    many = len(load.either) > 2
    busy, unserved, rare = [], [], []
    for task, first in load.first.items():
        if many and (share := max(first)) > DOMINANT:
            busy.append(f"expert {first.index(share)} ({percent(share)} for {task})")
        if (left := 1 - sum(first)) > 1e-6:
            unserved.append(f"{percent(left)} for {task}")
        if spared := load.spared(task):
            shares = [f"{expert} ({percent(load.visits[task][expert])})" for expert in spared]
            rare.append(f"{task} rarely uses {named(shares)}")
    idle = f"Idle: {named(load.idle)}, visited by {visits} of examples"
    return _said(
        "load",
        (load.idle, "warning", f"{idle} (an even share would be {even} per task)."),
        (load.light, "warning", f"Selected, but with almost no weight: {named(load.light)}."),
        (busy, "warning", f"First choice for most examples: {join(busy)}."),
        (unserved, "warning", f"Examples without an expert: {join(unserved)}."),
        (rare, "note", f"Not used by every task: {'; '.join(rare)}."),
    )


def likeness_findings(alike: Likeness) -> list[Finding]:
    return _said(
        "likeness",
        (alike.twins, "warning", f"Nearly identical outputs (cosine): {pairs(alike)}."),
        (alike.silent, "warning", f"Output 0 for every example: {named(alike.silent)}."),
    )


def pairs(alike: Likeness) -> str:
    """The twins with the largest cosines, and the number of the others."""
    first = [f"{a} and {b} ({cosine:.3f})" for a, b, cosine in alike.twins[:PAIRS]]
    more = len(alike.twins) - len(first)
    words = "" if not more else ", and 1 more pair" if more == 1 else f", and {more} more pairs"
    return f"experts {', '.join(first)}{words}"


def consistency_findings(steady: Consistency) -> list[Finding]:
    moving = [
        f"{percent(share)} of examples for {task}"
        for task, share in steady.last.items()
        if share < STEADY
    ]
    text = f"Routing still changes: in epoch {steady.epochs[-1]} only {join(moving)}"
    return _said("consistency", (moving, "warning", f"{text} kept their top expert."))


def learning_findings(curves: LearningCurves, asked: int) -> list[Finding]:
    """`asked`: trainer.max_epochs."""
    last, best, end = curves.epochs[-1], curves.best_epoch, curves.val_loss[-1]
    lowest = min(curves.val_loss)
    lowest_at = curves.epochs[curves.val_loss.index(lowest)]
    moves = "falling" if curves.monitor == LOSS else "improving"
    short = f"The validation {curves.monitor} was still {moves} in the last epoch ({last})"
    long = f"The validation loss rose from {lowest:.4f} (epoch {lowest_at}) to {end:.4f}"
    end_at = f"epoch {last}); the model is that of epoch {best}"
    return _said(
        "learning",
        (best == last == asked, "note", f"{short}: more epochs may help."),
        (end > WORSE_AT_END * lowest, "note", f"{long} ({end_at}."),
    )


def quality_findings(task: str, quality: Quality, behind: Sequence[str]) -> list[Finding]:
    """Missed baselines `behind`, or a nearly random AUC; miscalibration.

    `behind`: the lines of `baselines.missed` for the task.
    """
    auc = quality.roc.auc if quality.roc else 1.0
    errors = quality.reliability.error if quality.reliability else {}
    off = errors.get("calibrated", errors.get("raw", 0.0))
    chance = f"{task} is barely better than random: AUC {auc:.3f} (random is 0.5)."
    points = f"Probabilities of {task} differ from observed frequencies by {100 * off:.1f} points"
    return [
        *_said(
            f"{'roc' if quality.roc else 'error'}-{slug(task)}",
            *((True, "warning", f"{line}.") for line in behind),
            (auc < CHANCE and not behind, "warning", chance),
        ),
        *_said(
            f"calibration-{slug(task)}",
            (off > MISCALIBRATED, "warning", f"{points} on average ({CALIBRATION_BINS} bins)."),
        ),
    ]


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: finding.level != "warning")


def in_short(findings: Sequence[Finding]) -> str:
    warnings = sum(finding.level == "warning" for finding in findings)
    return f"{warnings} {'warning' if warnings == 1 else 'warnings'}" if warnings else "no warnings"
