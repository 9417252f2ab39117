"""The sections of a run's report: which figure stands where, and the numbers said beside it.

How to read a figure, and what is said about it, stands in templates/run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from recsys_moe.lab.report import plots_run
from recsys_moe.lab.report.expert_lines import expert_lines, header
from recsys_moe.lab.report.findings import percent, slug
from recsys_moe.lab.report.page import Section, Shown
from recsys_moe.lab.report.quality import ErrorBy, Quality
from recsys_moe.lab.report.run_figures import RunFigures
from recsys_moe.lab.report.specialisation import FEWEST, GenreBreakdown


def run_sections(run: RunFigures) -> list[Section]:
    """In the order of the page."""
    return [_learning(run), _experts(run), _routing(run), _quality(run), _specialisation(run)]


def _section(key: str, title: str, figures: dict[str, Shown], **values: Any) -> Section:
    return Section(key=key, title=title, template=f"run/{key}.html", figures=figures, values=values)


def _rows_of(run: RunFigures, count: int) -> str:
    return f"{count:,} rows of the {run.sample.split} split"


def _model(run: RunFigures) -> tuple[str, str]:
    sample = run.sample
    return ("model/", f"{sample.rows:,} of {sample.split_rows:,} rows of the {sample.split} split")


def _learning(run: RunFigures) -> Section:
    figures = {}
    if run.curves is not None:
        figures["learning"] = Shown(
            "learning", "Learning curves", ("metrics.csv",), run.curves, plots_run.learning
        )
    return _section("learning", "Learning", figures, run=run)


def _experts(run: RunFigures) -> Section:
    load, alike = run.load, run.likeness
    compared = ("model/", _rows_of(run, alike.rows))
    busiest = {task: max(enumerate(v), key=lambda pair: pair[1]) for task, v in load.visits.items()}
    return _section(
        "experts",
        "Experts",
        {
            "load": Shown("load", "Who is visited", _model(run), load, plots_run.load),
            "likeness": Shown("likeness", "Who is alike", compared, alike, plots_run.likeness),
        },
        run=run,
        header=header(run),
        lines=list(expert_lines(run)),
        busiest=[f"expert {e} ({percent(share)}) for {t}" for t, (e, share) in busiest.items()],
        twins=[f"{a} and {b} ({cosine:.3f})" for a, b, cosine in alike.twins],
    )


def _routing(run: RunFigures) -> Section:
    sharp, steady = run.sharpness, run.consistency
    figures = {
        "entropy": Shown(
            "entropy", "How decided the routers are", _model(run), sharp, plots_run.entropy
        ),
        "mass": Shown("mass", "How much the best experts hold", _model(run), sharp, plots_run.mass),
    }
    if steady is not None:
        source = ("routing.safetensors",)
        title = "How steady the routing became"
        figures["consistency"] = Shown("consistency", title, source, steady, plots_run.consistency)
    same = {} if steady is None else steady.same
    return _section(
        "routing",
        "Routing",
        figures,
        run=run,
        means=[f"{mean:.2f} for {task}" for task, mean in sharp.mean.items()],
        kept=[f"{percent(m[sharp.kept[t] - 1])} for {t}" for t, m in sharp.mass.items()],
        steady=[f"{percent(shares[-1])} for {task}" for task, shares in same.items()],
    )


def _quality(run: RunFigures) -> Section:
    shown = [figure for task, one in run.quality.items() for figure in _of_task(run, task, one)]
    return _section(
        "quality",
        "Quality",
        {figure.name: figure for figure in shown},
        off={
            f"calibration-{slug(task)}": [
                f"{100 * e:.1f} points ({name})" for name, e in one.reliability.error.items()
            ]
            for task, one in run.quality.items()
            if one.reliability
        },
        ends={
            f"error-{slug(task)}": [ends(group) for group in one.groups]
            for task, one in run.quality.items()
        },
    )


def _of_task(run: RunFigures, task: str, one: Quality) -> Iterator[Shown]:
    name, source = slug(task), _model(run)
    if one.roc:
        yield Shown(f"roc-{name}", f"Ranking: {task}", source, one.roc, plots_run.roc)
    if one.reliability:
        title = f"Honest probabilities: {task}"
        yield Shown(f"calibration-{name}", title, source, one.reliability, plots_run.calibration)
    if any(group.value for group in one.groups):
        title, seen = f"Who gets good predictions: {task}", (*source, "model/seen.safetensors")
        yield Shown(f"error-{name}", title, seen, one.groups, plots_run.error)


@dataclass(frozen=True)
class End:
    """A group of rows: its metric, and the least and most watched of its users or items."""

    value: float
    low: int
    high: int


@dataclass(frozen=True)
class Ends:
    """The worst and the best group; None where no group has a value."""

    by: str
    metric: str
    worst: End | None
    best: End | None


def ends(groups: ErrorBy) -> Ends:
    """Of RMSE the lowest is the best, of AUC the highest."""
    columns = zip(groups.value, groups.low, groups.high, strict=True)
    known = [End(*column) for column in columns if not math.isnan(column[0])]
    sign = -1 if groups.metric == "RMSE" else 1
    worst = min(known, key=lambda end: sign * end.value, default=None)
    best = max(known, key=lambda end: sign * end.value, default=None)
    return Ends(groups.by, groups.metric, worst, best)


@dataclass(frozen=True)
class Strongest:
    """The expert and genre with the largest lift."""

    lift: float
    expert: int
    genre: str


def _specialisation(run: RunFigures) -> Section:
    mapped = run.map
    source = ("model/", _rows_of(run, len(mapped.x)))
    figures = {
        "map": Shown("map", "Map of the examples", source, mapped, plots_run.expert_map),
    }
    for breakdown in run.genres:
        name, title = f"genres-{slug(breakdown.task)}", f"Genres: {breakdown.task}"
        items = (*_model(run), "model/items.parquet")
        figures[name] = Shown(name, title, items, breakdown, plots_run.genres)
    by_chance = {task: percent(share) for task, share in mapped.chance.items()}
    return _section(
        "specialisation",
        "Specialisation",
        figures,
        run=run,
        neighbours=[
            f"{percent(share)} for {task} (by chance {by_chance[task]})"
            for task, share in mapped.neighbours.items()
        ],
        genres=[(figures[f"genres-{slug(b.task)}"], strongest(b)) for b in run.genres],
        fewest=FEWEST,
    )


def strongest(breakdown: GenreBreakdown) -> Strongest | None:
    """None where every expert is the first choice of fewer than FEWEST rows."""
    cells = [
        (lift, expert, genre)
        for expert, lifts in enumerate(breakdown.lift)
        for lift, genre in zip(lifts, breakdown.genres, strict=True)
        if lift is not None
    ]
    return Strongest(*max(cells)) if cells else None
