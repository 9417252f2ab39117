"""Lists of one relevant row each, as they come in the log. Axes: L lists, N rows, C contexts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recsys_moe.data.columns import Rows
from recsys_moe.data.events import EventLog
from recsys_moe.data.rows import Columns, joined
from recsys_moe.inference.evaluation.ranking_wanted import Wanted
from recsys_moe.schema import Schema


@dataclass(frozen=True)
class Successive:
    """What each list is of and what it must not hold; by user and then in the order of the log."""

    log: EventLog
    seen_L2: Tensor
    """Which events of the user lie before each list."""
    rows: Columns
    """The relevant rows, with the history that a model reads."""
    left_out: int
    """Relevant rows of unknown users."""

    def only(self, kept_L: Tensor) -> Successive:
        """Some of the lists."""
        return replace(self, seen_L2=self.seen_L2[kept_L], rows=self.rows.part(kept_L))

    def excluded(self, number: int) -> Tensor:
        """Items that the user had before list `number`; its target is not among them."""
        first, end = self.seen_L2[number].tolist()
        item_N = self.log.item_P[first:end]
        return item_N[item_N != self.rows.item[number]]


def successive(
    rows: Rows, seen: Rows, wanted: Wanted, schema: Schema, *, only_last: bool = False
) -> Successive:
    """`rows`: a split as the model reads it; `seen`: with the spans of what was before.

    `only_last`: of each user; of several rows with the same past any one.
    """
    parts, spans, left_out = [], [], 0
    log: EventLog | None = None
    for chunk, with_seen in zip(rows.chunks(), seen.chunks(), strict=True):
        wanted_N = wanted.mask(chunk)
        known_N = wanted_N & (chunk.user < schema.user.size)
        left_out += int(wanted_N.sum() - known_N.sum())
        assert with_seen.history is not None and with_seen.timelines is not None
        log = with_seen.timelines.log
        parts.append(chunk.part(known_N))
        spans.append(with_seen.history[known_N])
    assert log is not None
    whole, seen_L2 = joined(parts), torch.cat(spans).long()
    order_L = (whole.user.long() * (len(log) + 1) + seen_L2[:, 1]).argsort(stable=True)
    if only_last:
        user_L = whole.user[order_L].long()
        order_L = order_L[user_L.diff(append=user_L.new_full((1,), -1)) != 0]
    return Successive(log, seen_L2[order_L], whole.part(order_L), left_out)
