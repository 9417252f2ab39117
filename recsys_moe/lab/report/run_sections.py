"""The sections of a run's report: which figure stands where, and what is said about it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from recsys_moe.lab.report import plots_run
from recsys_moe.lab.report.experts import IDLE
from recsys_moe.lab.report.findings import join, named, percent, slug
from recsys_moe.lab.report.page import Html, Section, Shown, element, table
from recsys_moe.lab.report.quality import ErrorBy, Quality
from recsys_moe.lab.report.run_figures import RunFigures, router_words
from recsys_moe.lab.report.specialisation import FEWEST, GenreBreakdown

NAMED_GENRES = 2
NOTABLE = 1.25
"""Times as often as on average from which a genre is named for an expert."""


def tiles(found: RunFigures) -> list[tuple[str, str, str]]:
    """Loss and the headline metric of each task."""
    result = found.sample.evaluation
    shown = [("loss", f"{result['loss']:.4f}", "task-weighted, without penalties; lower is better")]
    for task in found.tasks:
        metrics = result["tasks"][task.name]
        keys = {"binary": ("auc", "higher is better"), "regression": ("rmse", "lower is better")}
        key, better = keys[task.kind]
        value = "-" if metrics[key] is None else f"{metrics[key]:.4f}"
        shown.append((f"{task.name} {key.upper()}", value, f"{metrics['rows']:,} rows; {better}"))
    cost = result["experts_per_example"]
    experts = found.artifact.config.model.num_experts
    shown.append(("experts per example", f"{cost:.2f}", f"of {experts}; tasks share an expert"))
    idle = found.load.idle
    words = named(idle) if idle else "every expert is used"
    return [*shown, ("idle experts", str(len(idle)), words)]


def facts(found: RunFigures) -> dict[str, str]:
    config, schema = found.artifact.config, found.artifact.schema
    curves = found.curves
    trained = f"{len(curves.epochs)}, best: {curves.best_epoch}" if curves else "not on record"
    return {
        "router": router_words(found),
        "data": f"{schema.name} ({schema.protocol})",
        "users and items": f"{schema.user.size:,} and {schema.item.size:,}",
        "training rows": f"{schema.rows.get('train', 0):,}",
        "epochs": trained,
        "learning rate": f"{config.optim.lr:g}",
        "batch size": f"{config.trainer.batch_size:,}",
        "seed": str(config.trainer.seed),
        "parameters": f"{sum(p.numel() for p in found.artifact.model.parameters()):,}",
    }


def sections(found: RunFigures) -> list[Section]:
    return [_learning(found), _experts(found), _routing(found), _quality(found), _special(found)]


def _model(found: RunFigures) -> tuple[str, ...]:
    sample = found.sample
    return ("model/", f"{sample.rows:,} of {sample.split_rows:,} rows of the {sample.split} split")


def _learning(found: RunFigures) -> Section:
    intro = "How loss and metrics moved from epoch to epoch, as metrics.csv has them."
    curves = found.curves
    if curves is None:
        return Section("learning", "Learning", "There is no metrics.csv beside this model.")
    best = min(curves.val_loss)
    shown = Shown(
        "learning",
        "Learning curves",
        "Training and validation should fall together; a validation curve that rises while the "
        "training curve falls is overfitting. The dotted line is the epoch that was kept.",
        f"The validation loss was lowest, {best:.4f}, in epoch {curves.best_epoch} of "
        f"{curves.epochs[-1]}.",
        ("metrics.csv",),
        curves,
        plots_run.learning,
    )
    return Section("learning", "Learning", intro, [shown])


def _experts(found: RunFigures) -> Section:
    load, alike = found.load, found.likeness
    idle = f"Idle: {named(load.idle)}." if load.idle else "No expert is idle."
    busiest = {t: max(range(len(v)), key=v.__getitem__) for t, v in load.visits.items()}
    most = join(f"expert {e} ({percent(load.visits[t][e])}) for {t}" for t, e in busiest.items())
    pairs = join(f"{a} and {b} ({cosine:.3f})" for a, b, cosine in alike.twins)
    figures = [
        Shown(
            "load",
            "Who is visited",
            "A bar is the share of examples that visit an expert, the diamond the share for which "
            "it has the largest weight (of equal weights: is the most probable). The dashed line "
            "is an even share.",
            f"{idle} Most visited: {most}.",
            _model(found),
            load,
            plots_run.load,
        ),
        Shown(
            "likeness",
            "Who is alike",
            "Each expert's answers to the same examples, compared with every other expert's: 1 is "
            "the same up to a factor. Answers are never negative, so unrelated experts are "
            "well above 0.",
            f"Nearly identical: {pairs}." if pairs else "No two experts are nearly identical.",
            ("model/", f"{alike.rows:,} rows of the {found.sample.split} split"),
            alike,
            plots_run.likeness,
        ),
    ]
    intro = "Every expert in one line; all tasks share the same experts."
    return Section("experts", "Experts", intro, figures, _expert_table(found))


def _expert_table(found: RunFigures) -> Html:
    load = found.load
    header: list[object] = ["expert", "state"]
    for task in load.visits:
        header += [f"visits, {task}", f"weight, {task}"]
    header += ["most like", *(f"genres, {g.task}" for g in found.genres)]
    rows = [_expert_row(found, e) for e in range(len(load.either))]
    return table(header, rows, "Experts: visits are shares of examples, weights sum to 100%")


def _expert_row(found: RunFigures, e: int) -> list[object]:
    load = found.load
    state: object = "in use"
    if e in load.idle:
        state = element("span", "idle", class_="bad")
    elif e in load.light:
        state = element("span", "hardly counts", class_="bad")
    elif spared := [t for t, visits in load.visits.items() if visits[e] <= IDLE * load.even[t]]:
        state = f"not for {join(spared)}"
    cells: list[object] = [str(e), state]
    for task, visits in load.visits.items():
        cells += [percent(visits[e]), percent(load.weight[task][e])]
    others = {b: c for b, c in enumerate(found.likeness.cosine[e]) if b != e and c is not None}
    nearest = max(others, key=others.__getitem__) if others else None
    cells.append("-" if nearest is None else f"{nearest} ({others[nearest]:.2f})")
    return [
        *cells,
        *(element("span", _notable(genres, e), class_="words") for genres in found.genres),
    ]


def _notable(data: GenreBreakdown, e: int) -> str:
    lifts = [(lift, g) for lift, g in zip(data.lift[e], data.genres, strict=True) if lift]
    best = sorted(lifts, key=lambda pair: (-pair[0], pair[1]))[:NAMED_GENRES]
    return ", ".join(f"{g} ({lift:.1f}x)" for lift, g in best if lift >= NOTABLE) or "-"


def _routing(found: RunFigures) -> Section:
    sharp = found.sharpness
    means = join(f"{mean:.2f} for {task}" for task, mean in sharp.mean.items())
    kept = join(f"{percent(m[sharp.kept[t] - 1])} for {t}" for t, m in sharp.mass.items())
    figures = [
        Shown(
            "entropy",
            "How decided the routers are",
            "Entropy of each example's distribution over experts: 0 means one expert takes all, "
            "the right end means all take the same.",
            f"Mean entropy in nats: {means} (even: {sharp.edges[-1]:.2f}).",
            _model(found),
            sharp,
            plots_run.entropy,
        ),
        Shown(
            "mass",
            "How much the best experts hold",
            "Mean share that the 1, 2, 3, ... most probable experts of an example hold together. "
            "The large dot is the router's k: what lies above it is cut off.",
            f"The k largest hold {kept}.",
            _model(found),
            sharp,
            plots_run.mass,
        ),
    ]
    intro = "How sure the routers are, and how steady they became in training."
    steady = found.consistency
    if steady is None:
        intro += " How steady is not on record: the run has no routing.safetensors of two epochs."
        return Section("routing", "Routing", intro, figures)
    last = join(f"{percent(same[-1])} for {task}" for task, same in steady.same.items())
    shown = Shown(
        "consistency",
        "How steady the routing became",
        f"The share of {steady.rows:,} fixed validation rows whose top expert is the one of the "
        "epoch before. Dotted: what two unrelated routings with the same loads would have.",
        f"In epoch {steady.epochs[-1]} the share was {last}.",
        ("routing.safetensors",),
        steady,
        plots_run.consistency,
    )
    return Section("routing", "Routing", intro, [*figures, shown])


def _quality(found: RunFigures) -> Section:
    intro = "How good the predictions are, how honest the probabilities, and for whom."
    figures = [
        figure for task, one in found.quality.items() for figure in _task_figures(found, task, one)
    ]
    return Section("quality", "Quality", intro, figures)


def _task_figures(found: RunFigures, task: str, one: Quality) -> Iterator[Shown]:
    name, source = slug(task), _model(found)
    if one.roc:
        yield Shown(
            f"roc-{name}",
            f"Ranking: {task}",
            "Of all thresholds: which share of the negatives passes (right) for which share of the "
            "positives (up). The nearer to the upper left corner the better.",
            f"A positive outscores a negative with probability {one.roc.auc:.4f} (AUC).",
            source,
            one.roc,
            plots_run.roc,
        )
    if one.reliability:
        errors = join(f"{100 * e:.1f} points ({n})" for n, e in one.reliability.error.items())
        yield Shown(
            f"calibration-{name}",
            f"Honest probabilities: {task}",
            "Of the rows that were given some probability: how many were positive. On the dashed "
            "line a probability means what it says. Discs grow with the rows.",
            f"Predicted and observed differ by {errors} on average.",
            source,
            one.reliability,
            plots_run.calibration,
        )
    if any(group.value for group in one.groups):
        yield Shown(
            f"error-{name}",
            f"Who gets good predictions: {task}",
            "Rows in groups of about the same size, by how many items their user watched in "
            "training and by how many users watched their item."
            + (" Whiskers: 95% intervals." if one.groups[0].metric == "RMSE" else ""),
            ". ".join(_ends(group) for group in one.groups) + ".",
            (*source, "model/seen.safetensors"),
            one.groups,
            plots_run.error,
        )


def _ends(data: ErrorBy) -> str:
    """The worst and the best group in words."""
    known = [n for n, value in enumerate(data.value) if not math.isnan(value)]
    if not known:
        return f"By {data.by} {data.metric} is undefined"
    low, high = (f(known, key=data.value.__getitem__) for f in (min, max))
    worst, best = (high, low) if data.metric == "RMSE" else (low, high)
    words = (
        f"{data.value[n]:.3f} with {data.low[n]:,} to {data.high[n]:,} watched"
        for n in (worst, best)
    )
    return f"By {data.by}, {data.metric} is worst {' and best '.join(words)}"


def _special(found: RunFigures) -> Section:
    mapped = found.map
    words = join(
        f"{percent(share)} for {task} (by chance {percent(mapped.chance[task])})"
        for task, share in mapped.neighbours.items()
    )
    held = f" ({percent(mapped.explained)} of the variance)" if mapped.explained else ""
    figures = [
        Shown(
            "map",
            "Map of the examples",
            "Each dot is a (user, item) pair, placed by its embeddings and coloured by its top "
            "expert; a number stands at the middle of its expert's dots. Separate patches mean "
            f"that experts have areas of their own. {mapped.projection}{held}.",
            f"Of an example's ten nearest, this share has the same top expert: {words}.",
            ("model/", f"{len(mapped.x):,} rows of the {found.sample.split} split"),
            mapped,
            plots_run.expert_map,
        )
    ]
    for data in found.genres:
        figures.append(
            Shown(
                f"genres-{slug(data.task)}",
                f"Genres: {data.task}",
                "How often an expert is the top expert of a genre's examples, compared with all "
                "examples: 2.0 is twice as often, 0.5 half as often. Genres with the most rows "
                f"first; grey: the expert is the first choice of fewer than {FEWEST} rows.",
                _strongest(data),
                (*_model(found), "model/items.parquet"),
                data,
                plots_run.genres,
            )
        )
    intro = "What the experts divide among themselves (Figure 5 of the MOESART paper)."
    if not found.genres:
        intro += " The items have no column of genres with enough rows, so there is no breakdown."
    return Section("specialisation", "Specialisation", intro, figures)


def _strongest(data: GenreBreakdown) -> str:
    cells = [
        (lift, e, g)
        for e, row in enumerate(data.lift)
        for lift, g in zip(row, data.genres, strict=True)
        if lift is not None
    ]
    if not cells:
        return f"No expert is the first choice of {FEWEST} rows."
    lift, e, genre = max(cells)
    times = f"{lift:.1f} times as often as on average"
    return f"Strongest: expert {e} is the first choice of {genre} {times}."
