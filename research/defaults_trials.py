"""Automatic settings beside the best of random trials around them, chosen by validation loss.

python -m research.defaults_trials FILE.csv
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

DEFAULT, TRIAL = "automatic", "draw-"


class Tuned(NamedTuple):
    """A log, the trial that validation chooses, of how many, and test losses."""

    log: str
    chosen: str
    trials: int
    automatic: float
    tuned: float

    @property
    def worse(self) -> float:
        """By which share the automatic loss is above that of the trial."""
        return self.automatic / self.tuned - 1


def tuned(rows: Iterable[Mapping[str, str]]) -> Iterator[Tuned]:
    """Of each log with automatic settings and trials. These are among what validation chooses from,
    as a search around settings begins with them."""
    found: dict[str, dict[str, tuple[float, float]]] = defaultdict(dict)
    for row in rows:
        if row["contender"] == DEFAULT or row["contender"].startswith(TRIAL):
            found[row["log"]][row["contender"]] = float(row["val_loss"]), float(row["loss"])
    for log, losses in found.items():
        if DEFAULT in losses and len(losses) > 1:
            best = min(losses, key=lambda name: losses[name][0])
            yield Tuned(log, best, len(losses) - 1, losses[DEFAULT][1], losses[best][1])


def table(found: Iterable[Tuned]) -> str:
    """As Markdown."""
    lines = ["| log | trials | chosen | its test loss | automatic | worse by |"]
    lines += ["|---|---|---|---|---|---|"]
    for one in found:
        losses = f"{one.tuned:.4f} | {one.automatic:.4f} | {one.worse:+.1%}"
        lines.append(f"| {one.log} | {one.trials} | {one.chosen} | {losses} |")
    return "\n".join(lines)


if __name__ == "__main__":
    with Path(sys.argv[1]).open(newline="", encoding="utf-8") as stream:
        print(table(tuned(csv.DictReader(stream))))
