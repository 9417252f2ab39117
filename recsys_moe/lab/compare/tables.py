"""Tables of a comparison in Markdown, LaTeX and CSV, with notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from recsys_moe.artifact.monitor import LOSS
from recsys_moe.config.settings import named_weights
from recsys_moe.lab.compare.columns import RANKING, RANKING_NOTE, Column
from recsys_moe.lab.compare.results import Group, Results, is_bold
from recsys_moe.lab.compare.significance import LEVEL, Spread

NONE = "-"


@dataclass(frozen=True)
class Markup:
    """How a cell is written in one language."""

    plus_minus: str
    bold: Callable[[str], str]
    escape: Callable[[str], str]


MARKDOWN = Markup(" +- ", lambda text: f"**{text}**", lambda text: text.replace("|", r"\|"))
LATEX = Markup(r" $\pm$ ", lambda text: rf"\textbf{{{text}}}", lambda text: _tex(text))
TEX_ESCAPES = str.maketrans(
    {character: rf"\{character}" for character in "_%&#${}"}
    | {"\\": r"\textbackslash{}", "<": "$<$", ">": "$>$", "~": r"\textasciitilde{}"}
    | {"^": r"\textasciicircum{}"}
)


BOLD_NOTE = (
    "Bold: the best of the routers that choose by row and never evaluate all experts in training "
    "(k-sparse), where the paper's test, one-sided and unpaired (Welch's t-test), against the best "
    f"other one of them gives p < {LEVEL}."
)


def markdown(results: Results) -> str:
    """A table per pair of task weights, and notes."""
    parts = [title_of(results)]
    for group in results.groups:
        header, *rows = cells_of(group, results.columns, MARKDOWN)
        lines = [header, ["---"] * len(header), *rows]
        parts.append(f"Task weights: {weights_of(group)}")
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    notes = "\n".join(f"- {note}" for note in notes_of(results))
    return "\n\n".join([*parts, notes]) + "\n"


def latex(results: Results) -> str:
    """A `table` with `booktabs` rules per pair of task weights."""
    return "\n".join(_latex_table(results, group) for group in results.groups)


def _latex_table(results: Results, group: Group) -> str:
    header, *rows = cells_of(group, results.columns, LATEX)
    lines = [rf"{' & '.join(line)} \\" for line in rows]
    caption = (
        f"{title_of(results)} Task weights: {weights_of(group)}. {_cell_note(results)} {BOLD_NOTE}"
    )
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            r"\toprule",
            rf"{' & '.join(header)} \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            rf"\caption{{{_tex(caption)}}}",
            r"\end{table}",
            *(f"% {note}" for note in notes_of(results)),
            "",
        ]
    )


def csv_text(results: Results) -> str:
    """A line per router and task weights: mean, standard error and n of each column, unrounded."""
    lines = []
    for group in results.groups:
        for row in group.rows:
            weights = {f"weight.{task}": weight for task, weight in group.weights.items()}
            line = {"router": row.router, **weights, "runs": row.runs, "k_sparse": row.k_sparse}
            for column in results.columns:
                line |= _csv_cell(column.name, row.cells.get(column.name))
                line[f"{column.name}.bold"] = column.name in row.bold
            lines.append(line)
    return pd.DataFrame(lines, dtype=object).to_csv(index=False)


def _csv_cell(name: str, cell: Spread | None) -> dict[str, object]:
    mean, error = (cell.mean, cell.standard_error) if cell else (None, None)
    return {f"{name}.mean": mean, f"{name}.standard_error": error}


def notes_of(results: Results) -> list[str]:
    """Definitions and test results, in sentences."""
    notes = [
        _cell_note(results),
        "Experts: distinct experts evaluated per example over all tasks; in training the mean over "
        "the epochs (both passes, where a router makes two), at inference on the split.",
        "s/epoch: median over a run's epochs, with validation, while other runs may share the "
        "machine; parameters: of the whole model.",
        f"{BOLD_NOTE}",
        "p (Holm) corrects for comparing the best with each of the other k-sparse routers in its "
        "column; columns and task weights are not corrected for. The paired test compares runs of "
        "the same seed; all tests are one-sided.",
        *(text for group in results.groups for text in _verdicts(group, results.columns)),
    ]
    if results.runs and len({run.seed for run in results.runs}) == 1:
        notes.append("Only one seed: no spread and no test.")
    if any(column.name.startswith(RANKING) for column in results.columns):
        notes.append(RANKING_NOTE)
    if results.missing:
        notes.append(f"Not finished and not counted: {', '.join(results.missing)}.")
    return notes


def _cell_note(results: Results) -> str:
    monitors = sorted({run.monitor for run in results.runs} or {LOSS})
    lowest = monitors == [LOSS]
    best = f"the {'lowest' if lowest else 'best'} validation {' or '.join(monitors)}"
    return (
        f"Cells: mean +- standard error over seeds on the {results.split} split, each run at its "
        f"epoch with {best}."
    )


def _verdicts(group: Group, columns: Iterable[Column]) -> list[str]:
    titles = {column.name: column.title for column in columns}
    names = {row.contender: row.router for row in group.rows}
    return [
        f"Weights {weights_of(group)}, {titles[test.column]}: {names[test.best]} against "
        f"{names[test.other]}: unpaired p {_p(test.unpaired)} (Holm {_p(test.unpaired_holm)}), "
        f"paired p {_p(test.paired)} (Holm {_p(test.paired_holm)})"
        f"{', bold' if is_bold(test) else ''}."
        for test in group.tests
        if test.runner_up and (test.unpaired, test.paired) != (None, None)
    ]


def _p(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.2g}"


def title_of(results: Results) -> str:
    seeds = len(results.seeds)
    return (
        f"Routers on {results.data} (protocol {results.protocol}), {results.split} split, "
        f"{seeds} {'seed' if seeds == 1 else 'seeds'}."
    )


def weights_of(group: Group) -> str:
    return named_weights(group.weights)


def cells_of(group: Group, columns: Sequence[Column], markup: Markup) -> list[list[str]]:
    """The header, then a line per router."""
    header = ["router", "k-sparse", "runs", *(column.title for column in columns)]
    lines = [[markup.escape(cell) for cell in header]]
    for row in group.rows:
        cells = [written(row.cells.get(c.name), c, c.name in row.bold, markup) for c in columns]
        sparse = "yes" if row.k_sparse else row.experts
        lines.append([markup.escape(row.router), sparse, str(row.runs), *cells])
    return lines


def written(cell: Spread | None, column: Column, bold: bool, markup: Markup) -> str:
    """`0.4089 +- 0.0002`, without the error of one run."""
    if cell is None:
        return NONE
    if not column.digits:
        return f"{cell.mean:,.0f}"  # parameters: the same for every seed
    text = f"{cell.mean:.{column.digits}f}"
    if cell.standard_error is not None:
        text += f"{markup.plus_minus}{cell.standard_error:.{column.digits}f}"
    return markup.bold(text) if bold else text


def _tex(text: str) -> str:
    return text.translate(TEX_ESCAPES).replace("+-", r"$\pm$")
