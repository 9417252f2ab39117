"""What the lists of a top-N evaluation see of the past. Axes: U users, N rows, B rows or lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from recsys_moe.data.columns import Rows
from recsys_moe.data.rows import Columns, History, Timelines
from recsys_moe.model.request import Events
from recsys_moe.schema import Schema


class Relevant(Protocol):
    """Which rows are relevant, by the labels of a task."""

    @property
    def task(self) -> int: ...
    def mask(self, chunk: Columns) -> Tensor: ...


@dataclass(frozen=True)
class Before:
    """Which events lie before lists and rows: see `EventLog.span`."""

    timelines: Timelines
    user_U2: Tensor
    """Of each user, before the first relevant row of the split. (U + 1, 2)"""
    labelled_N2: Tensor
    """Of each row of `RankingRows.labelled`."""

    def events(self, span_B2: Tensor) -> Events:
        """What an encoder reads."""
        return self.timelines.log.windows(span_B2, self.timelines.length)


def before(rows: Rows, wanted: Relevant, history: History, schema: Schema) -> Before:
    """The spans of lists and labelled rows; `wanted` tells the relevant ones."""
    log = history.timelines.log
    user_U2 = log.whole(torch.arange(schema.user.size + 1)).long()
    labelled = []
    for chunk in rows.chunks():
        span_N2, user_N = chunk.history, chunk.user.long()
        assert span_N2 is not None
        wanted_N = wanted.mask(chunk)
        ends = user_U2[:, 1].scatter_reduce(
            0, user_N[wanted_N], span_N2[wanted_N, 1].long(), "amin"
        )
        user_U2 = torch.stack([user_U2[:, 0], ends], 1)
        known_N = ~chunk.labels[:, wanted.task].isnan() & (user_N < schema.user.size)
        labelled.append(span_N2[known_N])
    return Before(history.timelines, user_U2, torch.cat(labelled))
