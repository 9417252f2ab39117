"""The sections of a run's report: which figure stands where, and what is found in it.

How to read a figure, and what is said about it, stands in templates/run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from recsys_moe.lab.report import findings, plots_run
from recsys_moe.lab.report.experts import ExpertLoad, sharpness
from recsys_moe.lab.report.findings import Finding, percent, slug
from recsys_moe.lab.report.learning import LearningCurves
from recsys_moe.lab.report.page import Section, Shown
from recsys_moe.lab.report.quality import task_quality
from recsys_moe.lab.report.run import Run
from recsys_moe.lab.report.specialisation import FEWEST, GenreBreakdown


def _section(
    key: str, figures: Sequence[Shown], found: Iterable[Finding] = (), **values: Any
) -> Section:
    return Section(
        key=key,
        title=key.title(),
        template=f"run/{key}.html",
        figures={figure.name: figure for figure in figures},
        values=values,
        findings=list(found),
    )


def _model(run: Run, rows: int | None = None) -> tuple[str, str]:
    """Where a figure is from; `rows`: of the sample, None for the whole of it."""
    sample = run.sample
    of = f"rows of the {sample.split} split"
    if rows is not None:
        return "model/", f"{rows:,} {of}"
    return "model/", f"{sample.rows:,} of {sample.split_rows:,} {of}"


def learning(run: Run, curves: LearningCurves | None) -> Section:
    if curves is None:
        return _section("learning", [])
    source = ("metrics.csv",)
    figure = Shown("learning", "Learning curves", source, curves, plots_run.learning)
    asked = run.artifact.config.trainer.max_epochs
    return _section("learning", [figure], findings.learning_findings(curves, asked))


def experts(run: Run, load: ExpertLoad, genres: list[GenreBreakdown]) -> Section:
    alike = run.likeness()
    shares = [f"{what}, {task}" for task in load.visits for what in ("visits", "weight")]
    busiest = {task: max(enumerate(v), key=lambda pair: pair[1]) for task, v in load.visits.items()}
    return _section(
        "experts",
        [
            Shown("load", "Who is visited", _model(run), load, plots_run.load),
            Shown("likeness", "Who is alike", _model(run, alike.rows), alike, plots_run.likeness),
        ],
        [*findings.expert_findings(load), *findings.likeness_findings(alike)],
        header=["expert", "state", *shares, "most like", *(f"genres, {g.task}" for g in genres)],
        genres=genres,
        busiest=[f"expert {e} ({percent(share)}) for {t}" for t, (e, share) in busiest.items()],
        twins=[f"{a} and {b} ({cosine:.3f})" for a, b, cosine in alike.twins],
    )


def routing(run: Run) -> Section:
    routers, source = run.artifact.model.routers, _model(run)
    kept = [min(router.kept, router.shape.num_experts) for router in routers]
    sharp, steady = sharpness(run.sample, run.tasks, kept), run.consistency()
    figures = [
        Shown("entropy", "How decided the routers are", source, sharp, plots_run.entropy),
        Shown("mass", "How much the best experts hold", source, sharp, plots_run.mass),
    ]
    found = list(findings.sharpness_findings(sharp))
    if steady is not None:
        title, record = "How steady the routing became", ("routing.safetensors",)
        figures.append(Shown("consistency", title, record, steady, plots_run.consistency))
        found += findings.consistency_findings(steady)
    same = {} if steady is None else steady.same
    return _section(
        "routing",
        figures,
        found,
        means=[f"{mean:.2f} for {task}" for task, mean in sharp.mean.items()],
        kept=[f"{percent(m[sharp.kept[t] - 1])} for {t}" for t, m in sharp.mass.items()],
        steady=[f"{percent(shares[-1])} for {task}" for task, shares in same.items()],
    )


def quality(run: Run) -> Section:
    figures: list[Shown] = []
    found: list[Finding] = []
    source = _model(run)
    for index, task in enumerate(run.tasks):
        one = task_quality(run.artifact, run.sample, index)
        if one is None:
            continue
        found += findings.quality_findings(task, one)
        seen = (*source, "model/seen.safetensors")
        for name, title, sources, data, draw in (
            ("roc", "Ranking", source, one.roc, plots_run.roc),
            ("calibration", "Honest probabilities", source, one.reliability, plots_run.calibration),
            ("error", "Who gets good predictions", seen, one.groups, plots_run.error),
        ):
            if data:
                figures.append(
                    Shown(f"{name}-{slug(task)}", f"{title}: {task}", sources, data, draw)
                )
    return _section("quality", figures, found)


def specialisation(run: Run, genres: list[GenreBreakdown]) -> Section:
    mapped, items = run.map(), (*_model(run), "model/items.parquet")
    source = _model(run, len(mapped.x))
    return _section(
        "specialisation",
        [
            Shown("map", "Map of the examples", source, mapped, plots_run.expert_map),
            *(
                Shown(f"genres-{slug(g.task)}", f"Genres: {g.task}", items, g, plots_run.genres)
                for g in genres
            ),
        ],
        neighbours=[
            f"{percent(share)} for {task} (by chance {percent(mapped.chance[task])})"
            for task, share in mapped.neighbours.items()
        ],
        fewest=FEWEST,
    )
