"""Table of the finished runs of a study: means and standard errors.

    python -m examples.moebert.table research/results/moebert-titles.csv research/examples.md

writes the table of a CSV between the marks of a page.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from examples.common.outputs import spread
from examples.common.tables import FOUND, Row, by_label, fill_page, markdown

SETTINGS = (
    *("task", "router", "k", "experts", "units", "share", "distill", "balance", "trimmed_lasso"),
    *("lr", "batch_size", "seed"),
)
PARTS = {"converted": ("accuracy", "kl"), "distilled": ("accuracy", "agreement", "kl", "hidden")}
ORDER = ("topk", "hash", "moesart")


def row(run: Mapping[str, Any]) -> dict[str, Any]:
    """The row of results.csv of a finished run."""
    return {
        "label": run["label"],
        **{name: run[name] for name in SETTINGS},
        "teacher_accuracy": run["teacher_accuracy"],
        "test_loss": run["test"]["loss"],
        **{f"{part}_{name}": run[part][name] for part, of in PARTS.items() for name in of},
        "dense_accuracy": run.get("dense", {}).get("accuracy", ""),
        "dense_kl": run.get("dense", {}).get("kl", ""),
        **{name: run[name] for name in FOUND},
        "router_settings": json.dumps(run["router_settings"]),
    }


COLUMNS = (
    ("converted, %", "converted_accuracy", 100.0),
    ("distilled, %", "distilled_accuracy", 100.0),
    ("as the teacher, %", "distilled_agreement", 100.0),
    ("symmetric KL", "distilled_kl", 1.0),
    ("all experts, %", "dense_accuracy", 100.0),
    ("their KL", "dense_kl", 1.0),
)


def table(rows: Sequence[Row], order: Sequence[str] = ORDER) -> str:
    """Markdown: a line per contender, in `order` and then by name; means and standard errors."""
    heads = ["router", "k", "runs", "teacher, %", *(head for head, _, _ in COLUMNS)]
    heads.insert(6, "below the teacher, points")
    return markdown([heads, *(_line(*pair) for pair in by_label(rows, order).items())])


def _line(label: str, runs: Sequence[Row]) -> list[str]:
    teacher = [100 * float(run["teacher_accuracy"]) for run in runs]
    cells = [label, str(runs[0]["k"] or 1), str(len(runs)), f"{statistics.fmean(teacher):.2f}"]
    for _, name, scale in COLUMNS:
        values = [scale * float(run[name]) for run in runs if run[name] not in ("", None)]
        cells.append(spread(values) if values else "")
        if name == "distilled_accuracy":
            pairs = zip(teacher, values, strict=True)
            cells.append(spread([theirs - own for theirs, own in pairs]))
    return cells


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table of a CSV into a page."""
    return fill_page("moebert", table, argv)


if __name__ == "__main__":
    sys.exit(main())
