"""The table of a run's experts: what stands out about each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from recsys_moe.lab.report.experts import IDLE, ExpertLoad, Likeness
from recsys_moe.lab.report.run_figures import RunFigures
from recsys_moe.lab.report.specialisation import GenreBreakdown

NAMED_GENRES = 2
NOTABLE = 1.25
"""Times as often as on average from which a genre is named for an expert."""


@dataclass(frozen=True)
class ExpertLine:
    """A line of the table."""

    expert: int
    state: Literal["idle", "light", "spared", "used"]
    """`light`: visited, but with hardly any weight; `spared`: idle for some of the tasks."""
    spared_by: list[str]
    """Tasks that visit it with less than IDLE of an even share."""
    shares: list[float]
    """Per task its share of the visits, then of the weight."""
    nearest: tuple[int, float] | None
    """The expert whose outputs are most like its own, and their cosine."""
    genres: list[list[tuple[str, float]]]
    """Per task with a breakdown: up to NAMED_GENRES genres and their lift, from NOTABLE on."""


def header(run: RunFigures) -> list[str]:
    """Titles of the columns."""
    shares = [f"{what}, {task}" for task in run.load.visits for what in ("visits", "weight")]
    genres = [f"genres, {breakdown.task}" for breakdown in run.genres]
    return ["expert", "state", *shares, "most like", *genres]


def expert_lines(run: RunFigures) -> Iterator[ExpertLine]:
    """One per expert, by its number."""
    load = run.load
    for e in range(len(load.either)):
        spared_by = [
            task for task, visits in load.visits.items() if visits[e] <= IDLE * load.even[task]
        ]
        yield ExpertLine(
            expert=e,
            state=_state(load, e, spared_by),
            spared_by=spared_by,
            shares=[
                share
                for task in load.visits
                for share in (load.visits[task][e], load.weight[task][e])
            ],
            nearest=_nearest(run.likeness, e),
            genres=[_notable(breakdown, e) for breakdown in run.genres],
        )


def _state(
    load: ExpertLoad, e: int, spared_by: list[str]
) -> Literal["idle", "light", "spared", "used"]:
    if e in load.idle:
        return "idle"
    if e in load.light:
        return "light"
    return "spared" if spared_by else "used"


def _nearest(likeness: Likeness, e: int) -> tuple[int, float] | None:
    """None for an expert whose output is 0, or that is alone."""
    others = {
        b: cosine for b, cosine in enumerate(likeness.cosine[e]) if b != e and cosine is not None
    }
    return max(others.items(), key=lambda pair: pair[1], default=None)


def _notable(breakdown: GenreBreakdown, e: int) -> list[tuple[str, float]]:
    """The largest lifts first."""
    lifts = [(g, lift) for g, lift in zip(breakdown.genres, breakdown.lift[e], strict=True) if lift]
    best = sorted(lifts, key=lambda pair: (-pair[1], pair[0]))[:NAMED_GENRES]
    return [(genre, lift) for genre, lift in best if lift >= NOTABLE]
