"""The finished runs of a study: a row each in a CSV, and their means beside the paper's."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.common.outputs import spread, write, write_csv
from examples.images.paper_numbers import reported
from examples.images.settings import PROTOCOLS

SETTINGS = (
    *("dataset", "tasks", "router", "k", "experts"),
    *("lr", "batch_size", "precision", "trimmed_lasso", "seed"),
)
FOUND = ("best_epoch", "epochs_trained", "seconds_per_epoch", "threads", "device")
Run = Mapping[str, Any]


def finished(out: Path) -> list[dict[str, Any]]:
    """The results below OUT/runs, each with the label of its contender, by label and seed."""
    runs = [
        {"label": path.parent.name.rpartition("-seed")[0], **json.loads(path.read_text())}
        for path in (out / "runs").glob("*/result.json")
    ]
    return sorted(runs, key=lambda run: (run["label"], run["seed"]))


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
        for run in finished(out)
    ]
    if rows:
        write_csv(out / "results.csv", rows)
    return rows


def table(rows: Sequence[Run], order: Sequence[str] = ()) -> str:
    """Markdown: a line per contender, in `order` and then by name."""
    rank = {label: place for place, label in enumerate(order)}
    labels = sorted({r["label"] for r in rows}, key=lambda name: (rank.get(name, len(rank)), name))
    tasks = max((row["tasks"] for row in rows), default=1)
    heads = ["test loss x 100", *(f"accuracy {task + 1}, %" for task in range(tasks))]
    columns = ["contender", "k", "runs"]
    columns += [column for head in heads for column in (head, "paper")]
    columns += ["experts per row", "best epoch", "s/epoch"]
    lines = [columns, ["---"] * len(columns)]
    lines += [_line(label, [r for r in rows if r["label"] == label], tasks) for label in labels]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def write_table(out: Path, rows: Sequence[Run], order: Sequence[str]) -> str:
    """OUT/table.md; its text."""
    text = table(rows, order)
    write(out / "table.md", text.encode())
    return text


def _line(label: str, runs: Sequence[Run], tasks: int) -> list[str]:
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
