"""Joint choice at equal minutes: the best validation loss so far, by time instead of by epoch.

python -m research.joint_minutes

Time is counted in epochs of separate choices: an epoch of another form takes COST of one
(benchmarks/trained_steps.py; research/joint.md, what a step costs).
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROWS = Path(__file__).parent / "results" / "joint.epochs.csv"
BASE = "apart-2"
COST = {BASE: 1.0, "agree-2": 0.76, "joint-2": 0.75, "joint-3": 0.85}
TIMES = {"0.9": (8, 12, 16, 20, 25, 30), "0.1": (3, 4, 5, 6, 8)}
"""By weight of the watch task; both until the base no longer gets better."""
Losses = dict[tuple[str, str, int], dict[int, float]]
"""Validation loss by epoch of each (form, weight of watch, seed)."""


def read(path: Path = ROWS) -> Losses:
    found: Losses = defaultdict(dict)
    with path.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            key = row["form"], row["watch"], int(row["seed"])
            found[key][int(row["epoch"])] = float(row["val.loss"])
    return found


def best_by(losses: dict[int, float], time: float, cost: float) -> float:
    """The lowest loss of the epochs that end by `time`, an epoch taking `cost`."""
    return min(loss for epoch, loss in losses.items() if epoch * cost <= time + 1e-9)


def table(found: Losses) -> Iterator[str]:
    """The base's mean over seeds, and the paired differences of the others."""
    forms = [form for form in COST if form != BASE]
    yield "| watch | epochs of separate choices | separate | " + " | ".join(forms) + " |"
    yield "|---" * (3 + len(forms)) + "|"
    for watch, times in TIMES.items():
        seeds = [seed for form, weight, seed in found if (form, weight) == (BASE, watch)]
        for time in times:
            base = [best_by(found[BASE, watch, seed], time, 1.0) for seed in seeds]
            cells = [f"{statistics.mean(base):.4f}"]
            for form in forms:
                if (form, watch, seeds[0]) not in found:
                    cells.append("")
                    continue
                own = [best_by(found[form, watch, seed], time, COST[form]) for seed in seeds]
                less = [one - other for one, other in zip(own, base, strict=True)]
                error = statistics.stdev(less) / len(less) ** 0.5
                cells.append(f"{statistics.mean(less):+.4f} +- {error:.4f}")
            yield f"| {watch} | {time} | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.write("\n".join(table(read())) + "\n")
