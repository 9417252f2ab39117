"""Experts along the timelines of users: which are the first choice after how many events.

Axes: N rows, G groups, E experts.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recsys_moe.lab.report.genres import FEWEST

FROM = (0, 1, 5, 10, 20, 50, 100, 200, 500)
"""Fewest events of each group."""


@dataclass(frozen=True)
class RoutingByEvents:
    """First choices of one task by the number of events before the row."""

    task: str
    groups: list[str]
    """Numbers of events, ascending, of at least FEWEST rows."""
    rows: list[int]
    share: list[list[float]]
    """[expert][group]: share of the group's rows whose top expert this is."""

    @property
    def moved(self) -> float:
        """Share of rows that would have to change their top expert for the first group to be
        routed like the last: half the sum of the differences, 0 to 1."""
        return sum(abs(row[0] - row[-1]) for row in self.share) / 2


def routing_by_events(
    task: str, before_N: Tensor, top_N: Tensor, *, experts: int
) -> RoutingByEvents | None:
    """None where fewer than two groups have FEWEST rows. `before_N`: events before each row;
    `top_N`: as `Sample.top_NT` has it."""
    known_N = top_N >= 0
    group_N = torch.bucketize(before_N[known_N].long(), torch.tensor(FROM), right=True) - 1
    counts_GE = torch.zeros(len(FROM), experts, dtype=torch.float64)
    counts_GE.index_put_((group_N, top_N[known_N].long()), torch.ones(()).double(), accumulate=True)
    rows_G = counts_GE.sum(1)
    shown_G = (rows_G >= FEWEST).nonzero()[:, 0]
    if len(shown_G) < 2:
        return None
    return RoutingByEvents(
        task=task,
        groups=[_name(group) for group in shown_G.tolist()],
        rows=rows_G[shown_G].long().tolist(),
        share=(counts_GE[shown_G] / rows_G[shown_G, None]).T.tolist(),
    )


def _name(group: int) -> str:
    first, after = FROM[group], [*FROM, 0][group + 1]
    if not after:
        return f"{first}+"
    return str(first) if after - first == 1 else f"{first}-{after - 1}"
