"""The report of a comparison: its table, learning curves, costs and seeds, each run by name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from recsys_moe.files import sha256_file
from recsys_moe.lab.compare.results import Column, Group, Results, Row, RunRecord
from recsys_moe.lab.compare.significance import Spread
from recsys_moe.lab.compare.tables import notes_of
from recsys_moe.lab.report import comparison, plots_comparison
from recsys_moe.lab.report.findings import join, worst_first
from recsys_moe.lab.report.page import Html, Report, Section, Shown, element, joined, table


def comparison_report(folder: Path, out: Path) -> Report:
    """`out`: where the report will lie; links to the run folders start there. Raises DataError."""
    results = comparison.read_results(folder)
    comparison.check_runs(folder, results)
    seeds = f"{len(results.seeds)} {'seed' if len(results.seeds) == 1 else 'seeds'}"
    return Report(
        title=f"Routers on {results.data}",
        subtitle=f"Comparison {folder.resolve().name}: {results.split} split, {seeds} "
        f"(protocol {results.protocol})",
        tiles=_tiles(results),
        facts=_facts(results),
        findings=worst_first(comparison.comparison_findings(results)),
        sections=[
            *(_group(folder, results, number) for number in range(len(results.groups))),
            _runs(folder, results, out),
            _notes(results),
        ],
        provenance={
            "kind": "comparison",
            "comparison": str(folder),
            "files": {
                comparison.RESULTS: sha256_file(folder / comparison.RESULTS),
                **{
                    f"{run.run}/{comparison.METRICS}": sha256_file(
                        folder / run.run / comparison.METRICS
                    )
                    for run in results.runs
                },
            },
        },
    )


def _tiles(results: Results) -> list[tuple[str, str, str]]:
    """The best mean of all routers per tested column and weights."""
    found = []
    for group in results.groups:
        for column in (column for column in results.columns if column.better):
            rows = [row for row in group.rows if column.name in row.cells]
            if rows:
                sign = -1 if column.better == "higher" else 1
                best = min(rows, key=lambda row: sign * row.cells[column.name].mean)
                words = (
                    f"{best.router}{'' if best.k_sparse else ' (not k-sparse)'}, {weights(group)}"
                )
                value = f"{best.cells[column.name].mean:.{column.digits}f}"
                found.append((f"best {column.title}", value, words))
    return found


def _facts(results: Results) -> dict[str, str]:
    routers = {row.router for group in results.groups for row in group.rows}
    done, missing = len(results.runs), len(results.missing)
    return {
        "data": f"{results.data} ({results.protocol})",
        "split": results.split,
        "routers": str(len(routers)),
        "task weights": str(len(results.groups)),
        "seeds": join(results.seeds),
        "runs": f"{done} of {done + missing} finished",
    }


def weights(group: Group) -> str:
    return ", ".join(f"{task} {weight:g}" for task, weight in group.weights.items())


def _group(folder: Path, results: Results, number: int) -> Section:
    group = results.groups[number]
    key, title = f"group-{number}", f"Task weights: {weights(group)}"
    if not any(row.cells for row in group.rows):
        return Section(key, title, "No run with these weights has finished yet.")
    figures = [_learning(folder, results, number), *_costs(number, group)]
    tested = [column for column in results.columns if column.better]
    figures += [_seeds(results, number, column) for column in tested]
    intro = "Mean +- standard error over the seeds; only runs of the same weights can be compared."
    return Section(key, title, intro, figures, _table(results, group))


def _table(results: Results, group: Group) -> Html:
    columns = results.columns
    beside = [c for c in columns if any(c.name in row.paper for row in group.rows)]
    header: list[object] = ["router", "k-sparse", "runs", *(column.title for column in columns)]
    header += ["idle experts", *(f"paper {column.title}" for column in beside)]
    rows = [_row(results, row, columns, beside) for row in group.rows]
    caption = "Bold: the best k-sparse router where the test against the next best one says so"
    return table(header, rows, caption)


def _row(
    results: Results, row: Row, columns: Sequence[Column], beside: Sequence[Column]
) -> list[object]:
    cells: list[object] = [
        element("strong", cell) if column.name in row.bold else cell
        for column in columns
        for cell in [cell_text(row.cells.get(column.name), column)]
    ]
    runs = comparison.runs_of(results, row)
    idle = [len(comparison.idle_experts(run)) for run in runs]
    mean = f"{sum(idle) / len(idle):.1f}" if idle else "-"
    sparse = "yes" if row.k_sparse else row.experts
    paper = [cell_text(row.paper.get(column.name), column) for column in beside]
    return [row.router, sparse, str(row.runs), *cells, mean, *paper]


def cell_text(cell: Spread | None, column: Column) -> str:
    if cell is None:
        return "-"
    if cell.standard_error is None or not column.digits:
        return f"{cell.mean:,.{column.digits}f}"
    return f"{cell.mean:.{column.digits}f} +- {cell.standard_error:.{column.digits}f}"


def _learning(folder: Path, results: Results, number: int) -> Shown:
    data = comparison.curves(folder, results, results.groups[number])
    best = min(data.routers, key=lambda router: min(router.mean))
    epoch = best.epochs[best.mean.index(min(best.mean))]
    return Shown(
        f"learning-{number}",
        "Learning curves",
        "Validation loss per epoch: the mean of the runs that reached the epoch, with the least "
        "and the largest as a band; the other routers behind in grey.",
        f"The lowest mean, {min(best.mean):.4f}, is {best.router}'s in epoch {epoch}.",
        ("metrics.csv of each run",),
        data,
        plots_comparison.learning,
    )


def _costs(number: int, group: Group) -> list[Shown]:
    data = comparison.costs(group)
    if not data.router:
        return []
    best = join(f"{data.router[n]} ({data.loss[n]:.4f} at {data.cost[n]:.2f})" for n in data.best)
    shown = Shown(
        f"costs-{number}",
        "Loss and cost",
        "To the left is cheaper, down is better. Whiskers: standard error over the seeds.",
        f"Nothing is both cheaper and better than {best}.",
        (comparison.RESULTS,),
        data,
        plots_comparison.costs,
    )
    return [shown]


def _seeds(results: Results, number: int, column: Column) -> Shown:
    data = comparison.seeds(results, results.groups[number], column)
    order = list(data.values)
    words = f"Best mean: {order[0]}; worst: {order[-1]}." if order else "No run has a value."
    return Shown(
        comparison.seeds_figure(number, column.name),
        f"Seeds: {column.title}",
        "Each dot is a run, the line their mean. Routers whose dots overlap may well be equal.",
        words,
        (comparison.RESULTS,),
        data,
        plots_comparison.seeds,
    )


def _runs(folder: Path, results: Results, out: Path) -> Section:
    columns = [column for column in results.columns if column.name != "parameters"]
    header: list[object] = ["run", "seed", "best epoch", "epochs"]
    rows = [
        [_link(folder, run, out), str(run.seed), str(run.best_epoch), str(run.epochs)]
        + [_value(run.values.get(column.name), column) for column in columns]
        for run in results.runs
    ]
    content = table([*header, *(c.title for c in columns)], rows, "Every finished run")
    missing = element("p", f"Not finished: {join(results.missing)}.") if results.missing else Html()
    intro = "Each line is a run folder: `recsys-moe report` on it shows what its experts do."
    return Section("runs", "Runs", intro, (), joined([content, missing]))


def _link(folder: Path, run: RunRecord, out: Path) -> Html:
    relative = Path(os.path.relpath(folder / run.run, out)).as_posix()
    return element("a", Path(run.run).name, href=quote(relative))


def _value(value: float | None, column: Column) -> str:
    return "-" if value is None else f"{value:,.{column.digits}f}"


def _notes(results: Results) -> Section:
    notes = joined(element("li", note) for note in notes_of(results))
    intro = "What the numbers are, and every test in words."
    return Section("notes", "Notes and tests", intro, (), element("ul", notes, class_="plain"))
