"""Leave-one-log-out: is what the other logs would choose better on a log than its defaults?

A contender that is one rule changed is chosen by its mean relative loss on all logs but one, and
judged on that one. A default stands where no log's choice is better than it by more than chance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

DEFAULT = "automatic"


class Judged(NamedTuple):
    """A log, what the others choose for it, and by how much that is worse there than its default
    (below 0: better); the seeds that both have."""

    log: str
    chosen: str
    others: int
    worse: float
    seeds: int


def left_out(rows: Iterable[Mapping[str, str]]) -> Iterator[Judged]:
    """For each log that has `automatic` and another contender beside it on other logs."""
    losses = mean_losses(rows)
    logs = sorted({log for log, contender in losses if contender == DEFAULT})
    gains = {
        (log, contender): one[0] / losses[log, DEFAULT][0] - 1
        for (log, contender), one in losses.items()
        if (log, DEFAULT) in losses
    }
    for log in logs:
        found = {
            contender: [
                gain for (other, name), gain in gains.items() if name == contender and other != log
            ]
            for contender in {name for other, name in gains if other == log}
        }
        means = {name: sum(some) / len(some) for name, some in found.items() if some}
        if len(means) > 1:
            best = min(sorted(means), key=means.__getitem__)
            yield Judged(log, best, len(found[best]), gains[log, best], losses[log, best][1])


def mean_losses(rows: Iterable[Mapping[str, str]]) -> dict[tuple[str, str], tuple[float, int]]:
    """Mean test loss over seeds, and how many, by log and contender; peers have none."""
    found = defaultdict(list)
    for row in (row for row in rows if row["loss"]):
        found[row["log"], row["contender"]].append(float(row["loss"]))
    return {key: (sum(some) / len(some), len(some)) for key, some in found.items()}


def table(judged: Iterable[Judged]) -> str:
    """As Markdown."""
    lines = [
        "| log | chosen by the others | on logs | worse there by | seeds |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {j.log} | {j.chosen} | {j.others} | {j.worse:+.2%} | {j.seeds} |" for j in judged]
    return "\n".join(lines)
