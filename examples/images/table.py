"""Table of the finished runs of a study: means and standard errors, next to the paper's.

    python -m examples.images.table research/results/multi-mnist.csv research/examples.md

writes the table of a CSV between the marks of a page.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from examples.common.outputs import spread
from examples.common.tables import FOUND, Row, by_label, fill_page, markdown
from examples.images.settings import PROTOCOLS

SETTINGS = (
    *("dataset", "tasks", "router", "k", "experts"),
    *("lr", "batch_size", "precision", "trimmed_lasso", "seed"),
)
ORDER = ("softmax", "topk", "vmoe", "moesart", "pps")


class Reported(NamedTuple):
    """Test loss times 100 and accuracies in percent, each with its standard error."""

    loss: tuple[float, float]
    accuracy_1: tuple[float, float]
    accuracy_2: tuple[float, float]


REPORTED = {
    "multi_mnist": {
        "softmax": Reported((7.16, 0.05), (98.16, 0.02), (97.57, 0.02)),
        "topk": Reported((7.15, 0.05), (98.12, 0.02), (97.58, 0.02)),
        "vmoe": Reported((6.98, 0.04), (98.16, 0.02), (97.68, 0.02)),
        "smoe": Reported((6.90, 0.05), (98.18, 0.02), (97.69, 0.02)),
        "expert_choice": Reported((8.57, 0.06), (97.80, 0.02), (97.22, 0.02)),
        "xmoe": Reported((7.02, 0.06), (98.21, 0.02), (97.63, 0.03)),
        "moesart": Reported((5.86, 0.03), (98.40, 0.02), (97.92, 0.02)),
        "dselect_k": Reported((6.93, 0.06), (98.14, 0.02), (97.68, 0.03)),
        "comet": Reported((6.83, 0.06), (98.21, 0.02), (97.63, 0.03)),
        "moesart_i": Reported((6.15, 0.05), (98.33, 0.02), (97.92, 0.02)),
    },
    "multi_fashion": {
        "softmax": Reported((35.01, 0.09), (88.10, 0.05), (87.46, 0.05)),
        "topk": Reported((34.96, 0.09), (88.06, 0.05), (87.45, 0.05)),
        "vmoe": Reported((34.43, 0.09), (88.04, 0.05), (87.53, 0.05)),
        "smoe": Reported((34.68, 0.09), (88.06, 0.04), (87.52, 0.06)),
        "expert_choice": Reported((36.41, 0.11), (87.50, 0.08), (87.03, 0.06)),
        "xmoe": Reported((33.84, 0.10), (88.05, 0.08), (87.84, 0.08)),
        "moesart": Reported((32.85, 0.11), (88.56, 0.06), (88.02, 0.07)),
        "dselect_k": Reported((36.88, 0.21), (87.37, 0.07), (86.61, 0.09)),
        "comet": Reported((34.88, 0.13), (87.97, 0.06), (87.42, 0.06)),
        "moesart_i": Reported((34.15, 0.09), (88.19, 0.05), (87.71, 0.05)),
    },
}
for _rows in REPORTED.values():
    _rows["moesart_3"] = _rows["moesart"]


def reported(dataset: str, label: str, tasks: int) -> Reported | None:
    """None where the paper has no such row; its rows are of two tasks."""
    return REPORTED.get(dataset, {}).get(label) if tasks == 2 else None


def row(run: Mapping[str, Any]) -> dict[str, Any]:
    """The row of results.csv of a finished run."""
    return {
        "label": run["label"],
        **{name: run.get(name) for name in SETTINGS},
        **{f"test_{name}": value for name, value in run["test"].items()},
        "val_loss": run["val"]["loss"],
        **{name: run[name] for name in FOUND},
        "router_settings": json.dumps(run["router_settings"]),
    }


def table(rows: Sequence[Row], order: Sequence[str] = ORDER) -> str:
    """Markdown: a line per contender, in `order` and then by name."""
    tasks = max((row["tasks"] for row in rows), default=1)
    heads = ["test loss x 100", *(f"accuracy {task + 1}, %" for task in range(tasks))]
    columns = ["contender", "k", "runs"]
    columns += [column for head in heads for column in (head, "paper")]
    columns += ["experts per row", "best epoch", "s/epoch"]
    lines = [_line(label, runs, tasks) for label, runs in by_label(rows, order).items()]
    return markdown([columns, *lines])


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
    return fill_page("images", table, argv)


if __name__ == "__main__":
    sys.exit(main())
