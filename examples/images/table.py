"""The finished runs of a study: a row each in a CSV, and their means beside the paper's.

    python -m examples.images.table research/results/multi-mnist.csv research/examples.md

writes the table of a CSV between the marks of a page.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.common.outputs import spread, write, write_csv
from examples.common.tables import Row, by_label, fill, finished_runs, markdown
from examples.images.paper_numbers import reported
from examples.images.settings import PROTOCOLS

SETTINGS = (
    *("dataset", "tasks", "router", "k", "experts"),
    *("lr", "batch_size", "precision", "trimmed_lasso", "seed"),
)
FOUND = ("best_epoch", "epochs_trained", "seconds_per_epoch", "threads", "device")
ORDER = ("softmax", "topk", "vmoe", "moesart", "pps")


def write_results(out: Path) -> list[dict[str, Any]]:
    """OUT/results.csv, a row per finished run; the rows of all of them."""
    rows = [
        {
            "label": run["label"],
            **{name: run.get(name) for name in SETTINGS},
            **{f"test_{name}": value for name, value in run["test"].items()},
            "val_loss": run["val"]["loss"],
            **{name: run[name] for name in FOUND},
            "router_settings": json.dumps(run["router_settings"]),
        }
        for run in finished_runs(out)
    ]
    if rows:
        write_csv(out / "results.csv", rows)
    return rows


def table(rows: Sequence[Row], order: Sequence[str] = ORDER) -> str:
    """Markdown: a line per contender, in `order` and then by name."""
    tasks = max((row["tasks"] for row in rows), default=1)
    heads = ["test loss x 100", *(f"accuracy {task + 1}, %" for task in range(tasks))]
    columns = ["contender", "k", "runs"]
    columns += [column for head in heads for column in (head, "paper")]
    columns += ["experts per row", "best epoch", "s/epoch"]
    lines = [_line(label, runs, tasks) for label, runs in by_label(rows, order).items()]
    return markdown([columns, *lines])


def write_table(out: Path, rows: Sequence[Row], order: Sequence[str]) -> str:
    """OUT/table.md; its text."""
    text = table(rows, order)
    write(out / "table.md", text.encode())
    return text


def _line(label: str, runs: Sequence[Row], tasks: int) -> list[str]:
    names = ["test_loss", *(f"test_accuracy_{task + 1}" for task in range(tasks))]
    protocol = PROTOCOLS[runs[0]["dataset"]]
    is_theirs = runs[0]["k"] in (None, protocol.k) and runs[0]["experts"] == protocol.experts
    paper = reported(runs[0]["dataset"], label, tasks) if is_theirs else None
    cells = [label, str(runs[0]["k"] or "all"), str(len(runs))]
    for name, theirs in zip(names, paper or [None] * len(names), strict=True):
        cells.append(spread([100 * run[name] for run in runs]))
        cells.append("" if theirs is None else f"{theirs[0]:.2f} +- {theirs[1]:.2f}")
    for name, places in (("test_experts", 2), ("best_epoch", 0), ("seconds_per_epoch", 1)):
        cells.append(f"{statistics.fmean(run[name] for run in runs):.{places}f}")
    return cells


def main(argv: Sequence[str] | None = None) -> int:
    """Write the table of a CSV into a page."""
    source, page = map(Path, sys.argv[1:] if argv is None else argv)
    fill(page, "images", table, source)
    return 0


if __name__ == "__main__":
    sys.exit(main())
