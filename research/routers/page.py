"""The page research/routers.md: what stands between its markers is made from the rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from scipy import stats

from recsys_moe.lab.compare.significance import holm, spread
from recsys_moe.lab.report.plots import canvas, colour, render, titled
from research.results_plot import name_lines
from research.results_table import wrapped
from research.routers.order import MANY, SMALL, TRIALS, chosen, stages, trials
from research.routers.rows import RESULTS, ROWS, WEIGHTS, Job, Row, all_rows, read_rows

PAGE = RESULTS.parent / "routers.md"
FIGURE = RESULTS.parent / "images" / "routers.svg"
SHOWN, TICKS = 20, (1, 2, 3, 5, 10, 20, 30)
BEGIN, END = "<!-- routers -->", "<!-- /routers -->"
REFERENCE = "moesart"
MINUTES, MANY_MINUTES, LARGE = 3.5, 9.0, 12.0
"""Of a run whose router has no measured one: with few experts, with many; times LARGE on 1M."""
LEGEND = (
    "Loss, AUC and MSE: mean +- standard error over seeds, test, of the setting with the lowest "
    "validation loss among the trials (seed 0). Trials: how many of the six planned are done. p: "
    "Welch's t-test of the loss against moesart, two-sided, after Holm's correction for the table. "
    "Minutes: of a processor, training and validation, where this study measured them. Experts: "
    "distinct ones per example over all tasks, training. Rows: commits of the runs. Figure: hollow "
    "where minutes are those of the clock in an earlier study, beside up to three other runs."
)
Settings = Mapping[str, Mapping[str, object]]
Rows = Mapping[Job, Row]


@dataclass(frozen=True)
class Line:
    """A router of the table."""

    router: str
    setting: str
    trials: int
    runs: list[Row]
    """Of its setting, tested."""

    def values(self, name: str) -> list[float]:
        return [value for row in self.runs if (value := row[name]) is not None]


def lines_of(settings: Settings, rows: Rows, log: str, weights: str) -> list[Line]:
    """Routers with tested runs, the lowest mean loss first. Of MovieLens-1M those of an earlier
    study stand in where the chosen setting has none yet."""
    found = []
    for router in settings:
        there = [
            r for j, r in rows.items() if (j.log, j.router, j.weights) == (log, router, weights)
        ]
        done = [row for row in there if row["loss"] is not None]
        setting = chosen(router, rows)
        if log != SMALL and not any(row.job.setting == setting for row in done):
            setting = done[0].job.setting if done else None
        tested = [row for row in done if row.job.setting == setting]
        if setting and tested:
            planned = list(settings[router])[:TRIALS]
            tried = sum(row.job.setting in planned for row in trials(router, rows))
            found.append(Line(router, setting, tried, tested))
    return sorted(found, key=lambda line: statistics.fmean(line.values("loss")))


def p_values(lines: Sequence[Line]) -> dict[str, float | None]:
    """Of the loss against the reference's, Holm-corrected; None with fewer than two seeds."""
    reference = next((line.values("loss") for line in lines if line.router == REFERENCE), [])
    others = [line for line in lines if line.router != REFERENCE]
    raw: list[float | None] = [
        float(stats.ttest_ind(reference, values, equal_var=False).pvalue)
        if min(len(reference), len(values)) > 1
        else None
        for values in (line.values("loss") for line in others)
    ]
    return dict(zip((line.router for line in others), holm(raw), strict=True))


def table(lines: Sequence[Line]) -> str:
    p, best = p_values(lines), statistics.fmean(lines[0].values("loss"))
    head = ["router", "setting", "trials", "seeds", "loss", "above the best", "p"]
    head += ["watch AUC", "rating MSE", "minutes", "experts", "rows"]
    body = [head, ["---"] * len(head)]
    for line in lines:
        above = statistics.fmean(line.values("loss")) - best
        corrected = p.get(line.router)
        minutes = _measured(line)
        body.append(
            [
                f"`{line.router}`",
                f"`{line.setting}`",
                str(line.trials),
                str(len(line.runs)),
                _cell(line.values("loss")),
                f"{above:+.4f}" if above else "-",
                "-" if corrected is None else f"{corrected:.2g}",
                _cell(line.values("watch.auc")),
                _cell(line.values("rating.mse")),
                f"{statistics.fmean(minutes):.1f}" if minutes else "-",
                f"{statistics.fmean(line.values('experts_training')):.2f}",
                ", ".join(sorted({row.commit for row in line.runs})),
            ]
        )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in body)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    found = spread(values)
    error = "" if found.standard_error is None else f" +- {found.standard_error:.4f}"
    return f"{found.mean:.4f}{error}"


def _measured(line: Line) -> list[float]:
    """Minutes of whole runs."""
    return [m for row in line.runs if (m := row["minutes"]) is not None and not row["resumed"]]


def minutes_of(job: Job, rows: Rows) -> float:
    """What a run is expected to take."""
    own = [row for row in trials(job.router, rows) if row["minutes"] and not row["resumed"]]
    if own:
        guess = statistics.fmean(row["minutes"] or 0.0 for row in own)
    else:
        experts = [row["experts_training"] or 0.0 for row in trials(job.router, rows)]
        guess = MANY_MINUTES if max(experts, default=0.0) > MANY else MINUTES
    return guess * (LARGE if job.log == "ml-1m" else 1.0)


def missing(settings: Settings, rows: Rows, new: Rows, matter: Settings) -> str:
    """A line per stage: runs and hours."""
    body = [["stage", "runs", "processor hours"], ["---"] * 3]
    total_runs, total = 0, 0.0
    for stage, jobs in stages(settings, rows, new, matter).items():
        hours = sum(minutes_of(job, rows) for job in jobs) / 60
        total_runs, total = total_runs + len(jobs), total + hours
        body.append([stage, str(len(jobs)), f"{hours:.1f}"])
    body.append(["all", str(total_runs), f"{total:.1f}"])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in body)


def matter_table(matter: Settings, rows: Rows) -> str:
    """Test loss per log and number of experts, a column per group; empty without rows."""
    cells: dict[tuple[str, str], dict[str, list[float]]] = {}
    for job, row in rows.items():
        if job.router in matter and row["loss"] is not None:
            experts = job.setting.removeprefix(job.router).strip("_") or "16_experts"
            of_group = cells.setdefault((job.log, experts.partition("_")[0]), {})
            of_group.setdefault(job.router, []).append(row["loss"] or 0.0)
    body = [["log", "experts", *(f"`{group}` (seeds)" for group in matter)]]
    body.append(["---"] * len(body[0]))
    for (log, experts), found in sorted(cells.items()):
        means = [f"{_cell(found[g])} ({len(found[g])})" if g in found else "-" for g in matter]
        body.append([log, experts, *means])
    return "\n".join(f"| {' | '.join(line)} |" for line in body) if cells else ""


def block(settings: Settings, matter: Settings, path: Path = ROWS) -> str:
    """What stands between the markers."""
    new = read_rows(path)
    rows = all_rows({r: dict(of) for r, of in settings.items()}, path)
    parts = []
    titles = {
        ("ml-100k", WEIGHTS): "MovieLens-100K, task weights 0.9 (watch) and 0.1 (rating)",
        ("ml-100k", "0.1,0.9"): "MovieLens-100K, task weights 0.1 (watch) and 0.9 (rating)",
        ("ml-1m", WEIGHTS): "MovieLens-1M, task weights 0.9 (watch) and 0.1 (rating)",
    }
    for (log, weights), title in titles.items():
        if lines := lines_of(settings, rows, log, weights):
            parts += [f"{title}:", table(lines)]
    parts.append(wrapped(LEGEND))
    parts.append("![Test loss against minutes](images/routers.svg)")
    if answer := matter_table(matter, rows):
        parts += ["Does routing matter? Test loss ([routing.yaml](results/routing.yaml)):", answer]
    parts += ["What is missing:", missing(settings, rows, new, matter)]
    return "\n\n".join(parts)


def figure_of(lines: Sequence[Line]) -> Figure:
    """Loss against minutes of the best SHOWN routers; hollow: by the clock, in earlier studies."""
    with canvas(1, 1, 5.0) as (figure, grid):
        axes, names = grid[0][0], []
        for number, line in enumerate(lines[:SHOWN]):
            minutes, walls = _measured(line), line.values("wall")
            at = statistics.fmean(minutes or walls)
            loss, ink = spread(line.values("loss")), colour(number)
            style: dict[str, Any] = {"color": ink, "fmt": "o", "markersize": 4}
            style["markerfacecolor"] = ink if minutes else "none"
            axes.errorbar([at], [loss.mean], yerr=[loss.standard_error or 0.0], **style)
            names.append((line.router, at, loss.mean, ink))
        axes.set_xscale("log")
        axes.set_xticks(TICKS, [f"{tick}" for tick in TICKS])
        axes.set_xticks([], minor=True)
        name_lines(axes, names, dots=False)
        titled(axes, "MovieLens-100K", "minutes of a run", "test loss")
    return figure


def write(settings: Settings, matter: Settings, path: Path = ROWS) -> None:
    """Fill the page between its markers and draw the figure. Raises ValueError without markers."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(filled(text, block(settings, matter, path)), encoding="utf-8")
    rows = all_rows({r: dict(of) for r, of in settings.items()}, path)
    lines = lines_of(settings, rows, SMALL, WEIGHTS)
    FIGURE.write_bytes(render("routers", figure_of, lines).svg)


def filled(text: str, block: str) -> str:
    head, found, rest = text.partition(BEGIN)
    _, ended, tail = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"the page must have the lines {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{block}\n\n{END}{tail}"
