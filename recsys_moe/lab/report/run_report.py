"""The report of one run: its sections with their figures and findings.

templates/run has the texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from recsys_moe.artifact.baselines import missed
from recsys_moe.artifact.epoch_metrics import EPOCH_METRICS
from recsys_moe.artifact.idle import IDLE_WORDS
from recsys_moe.artifact.manifest import MANIFEST, find_artifact
from recsys_moe.artifact.routing_history import FILE, read_routing
from recsys_moe.config.overview import overviews
from recsys_moe.config.settings import Config
from recsys_moe.errors import DataError
from recsys_moe.files import read_object, sha256_file
from recsys_moe.inference.evaluation.ranking_report import titles
from recsys_moe.lab.report import findings, plots_run
from recsys_moe.lab.report.experts import ExpertLoad, expert_load, likeness, sharpness
from recsys_moe.lab.report.findings import Finding, percent, slug
from recsys_moe.lab.report.genres import FEWEST
from recsys_moe.lab.report.importance import ROWS, importance
from recsys_moe.lab.report.learning import LearningCurves, consistency
from recsys_moe.lab.report.page import Report, Section, Shown
from recsys_moe.lab.report.plots_periods import over_time, periods
from recsys_moe.lab.report.quality import task_quality
from recsys_moe.lab.report.run import Options, Progress, Run, look_at
from recsys_moe.schema import SCHEMA_FILE, Schema

LIKENESS_ROWS = 2048
"""Rows on which experts are compared with each other."""


def run_report(path: Path, options: Options, progress: Progress) -> Report:
    """Raises ConfigError and DataError."""
    run = look_at(path, options, progress)
    sample, config = run.sample, run.artifact.config
    load = expert_load(sample, run.tasks) if run.artifact.model.routers else None
    curves = run.curves()
    recorded = _recorded(run)
    quality = _quality(run, recorded)
    others = [_learning(run, curves)]
    if load is not None:
        others += [_experts(run, load), _routing(run)]
    more = [*_features(run, progress)]
    # Quality comes first.
    found = [one for section in (quality, *others, *more) for one in section.findings]
    what = "all" if sample.is_whole else f"a sample of {sample.rows:,}"
    return Report(
        title=f"Run {run.folder.name}",
        subtitle=f"{run.artifact.schema.name}, {sample.split} split "
        f"({what} of the {sample.split_rows:,} rows)",
        summary="run/summary.html",
        values={
            "run": run,
            "load": load,
            "curves": curves,
            "visited": _visited(config),
            "parameters": sum(p.numel() for p in run.artifact.model.parameters()),
        },
        findings=findings.worst_first([*found, *_about_the_rows(run, recorded)]),
        sections=[*others, quality, *more],
        provenance=_provenance(path, run),
    )


def _visited(config: Config) -> str | None:
    """Experts that an example visits, in words; None for a model without routers."""
    if config.router is None:
        return None
    return overviews(config)[config.router.name].inference or "?"


def _section(
    key: str, figures: Sequence[Shown], found: Sequence[Finding] = (), **values: Any
) -> Section:
    named = {figure.name: figure for figure in figures}
    return Section(key, key.title(), f"run/{key}.html", named, values, found)


def _model(run: Run, rows: int | None = None) -> tuple[str, str]:
    """Where a figure is from; `rows`: of the sample, None for the whole of it."""
    sample = run.sample
    shown = sample.rows if rows is None else rows
    return "model/", f"{shown:,} of {sample.split_rows:,} rows of the {sample.split} split"


def _learning(run: Run, curves: LearningCurves | None) -> Section:
    if curves is None:
        return _section("learning", [])
    figure = Shown("learning", "Learning curves", (EPOCH_METRICS,), curves, plots_run.learning)
    asked = run.artifact.config.trainer.max_epochs
    return _section("learning", [figure], findings.learning_findings(curves, asked))


def _experts(run: Run, load: ExpertLoad) -> Section:
    genres, items = run.genres(), (*_model(run), "model/items.parquet")
    alike = likeness(run.artifact, run.some(LIKENESS_ROWS)[0])
    return _section(
        "experts",
        [
            Shown("load", "Expert load", _model(run), load, plots_run.load),
            Shown(
                "likeness", "Expert similarity", _model(run, alike.rows), alike, plots_run.likeness
            ),
            *(
                Shown(
                    f"genres-{slug(one.task)}", f"Genres: {one.task}", items, one, plots_run.genres
                )
                for one in genres
            ),
        ],
        [*findings.expert_findings(load), *findings.likeness_findings(alike)],
        genres=genres,
        fewest=FEWEST,
        twins=findings.pairs(alike),
        idle_words=IDLE_WORDS,
    )


def _routing(run: Run) -> Section:
    routers, source = run.artifact.model.routers, _model(run)
    kept = [min(router.kept, router.shape.num_experts) for router in routers]
    sharp, record = sharpness(run.sample, run.tasks, kept), run.folder / FILE
    figures = [
        Shown("entropy", "Routing entropy", source, sharp, plots_run.entropy),
        Shown("mass", "Probability of the top experts", source, sharp, plots_run.mass),
        *(
            Shown(
                f"events-{slug(one.task)}",
                f"Experts by number of events: {one.task}",
                source,
                one,
                plots_run.by_events,
            )
            for one in run.by_events()
        ),
    ]
    steady = None
    if record.is_file():
        steady = consistency(read_routing(record), run.artifact.schema.tasks)
    if steady is None or not steady.epochs:
        return _section("routing", figures, fewest=FEWEST)
    title = "Routing consistency"
    figures.append(Shown("consistency", title, (FILE,), steady, plots_run.consistency))
    found = findings.consistency_findings(steady)
    return _section("routing", figures, found, fewest=FEWEST)


def _quality(run: Run, recorded: dict[str, Any]) -> Section:
    figures: list[Shown] = []
    found: list[Finding] = []
    evaluation, source = run.sample.evaluation, _model(run)
    seen = (*source, "model/seen.safetensors")
    for index, task in enumerate(run.tasks):
        one = task_quality(run.artifact, run.sample, index)
        if one is None:
            continue
        bounds = {task: evaluation["baselines"][task]}
        behind = [*missed({**evaluation, "baselines": bounds})]
        found += findings.quality_findings(task, one, behind)
        for name, title, sources, data, draw in (
            ("roc", "ROC curve", source, one.roc, plots_run.roc),
            ("calibration", "Calibration", source, one.reliability, plots_run.calibration),
            ("error", "Error by activity and popularity", seen, one.groups, plots_run.error),
        ):
            if data:
                name, title = f"{name}-{slug(task)}", f"{title}: {task}"
                figures.append(Shown(name, title, sources, data, draw))
    if by_time := over_time(recorded.get("periods") or ()):
        file = f"evaluation/{run.sample.split}.json"
        figures.append(Shown("periods", "Metrics by period", (file,), by_time, periods))
    ranking = recorded.get("ranking")
    names = titles(ranking["k"]) if ranking else {}
    segments = run.segments()
    contexts = {name: one for name, one in segments.items() if "=" in name}
    others = {name: one for name, one in segments.items() if name not in contexts}
    shown = {"ranking": ranking, "titles": names, "segments": others, "contexts": contexts}
    return _section("quality", figures, found, result=evaluation, **shown)


def _features(run: Run, progress: Progress) -> Iterator[Section]:
    """None of a model of ids. On validation unless a split is asked for: test stays unread."""
    split, most = run.options.split or "val", min(ROWS, run.options.rows or ROWS)
    if not run.artifact.encoders and run.artifact.config.model.context == "none":
        return
    rows, seed = run.rows(split), run.options.seed
    data = importance(run.artifact, rows, split, seed=seed, most=most, progress=progress)
    if data is not None:
        source = "model/", f"{data.rows:,} of {data.split_rows:,} rows of the {split} split"
        title = "Permutation importance"
        yield _section("features", [Shown("importance", title, source, data, plots_run.importance)])


def _recorded(run: Run) -> dict[str, Any]:
    """The run's own evaluation of this split; empty for other data than in training."""
    path = run.folder / "evaluation" / f"{run.sample.split}.json"
    if not run.same_data or not path.is_file():
        return {}
    try:
        found = read_object(path)
        return {**found, "loss": float(found["loss"])}
    except (ValueError, LookupError, TypeError) as error:
        text = f"{path} is damaged: {error}; run `recsys-moe evaluate` again"
        raise DataError(text) from None


def _about_the_rows(run: Run, recorded: dict[str, Any]) -> Iterator[Finding]:
    """Other data than in training, a different recorded evaluation, out-of-vocabulary ids."""
    sample, schema = run.sample, run.artifact.schema
    loss = sample.evaluation["loss"]
    if not run.same_data:
        text = "These data are not the training data; training may have seen some of the rows."
        yield findings.warning(text)
    elif sample.is_whole and not math.isclose(loss, recorded.get("loss", loss), rel_tol=1e-4):
        file, other = f"evaluation/{sample.split}.json", recorded["loss"]
        text = f"The loss of these rows is {loss:.6f}; {file} of the run has {other:.6f}."
        yield findings.warning(text)
    pairs = (sample.columns.user, schema.user), (sample.columns.item, schema.item)
    for index_N, feature in pairs:
        unseen = float((index_N >= feature.trained).double().mean())
        if unseen:
            text = f"{percent(unseen)} of rows have a {feature.name} that training did not see."
            yield findings.note(text)


def _provenance(path: Path, run: Run) -> dict[str, Any]:
    """Files that the numbers come from, each with its SHA-256."""
    sample, schema = run.sample, run.data / SCHEMA_FILE
    names = (EPOCH_METRICS, FILE, f"evaluation/{sample.split}.json")
    files = [run.folder / name for name in names]
    sources = {file.name: sha256_file(file) for file in files if file.is_file()}
    sources[f"model/{MANIFEST}"] = sha256_file(find_artifact(path) / MANIFEST)
    return {
        "kind": "run",
        "run": str(path),
        "files": sources,
        "data": {"name": Schema.load(run.data).name, SCHEMA_FILE: sha256_file(schema)},
        "split": sample.split,
        "rows": sample.rows,
        "split_rows": sample.split_rows,
        "seed": run.options.seed,
        "evaluation": sample.evaluation,
    }
