"""What the lists of a top-N evaluation see of the past. Axes: U users, N rows, B rows or lists."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recsys_moe.data.columns import Rows
from recsys_moe.data.rows import History, Timelines
from recsys_moe.inference.evaluation.ranking_wanted import Wanted
from recsys_moe.model.request import Events
from recsys_moe.schema import Schema


@dataclass(frozen=True)
class Before:
    """Which events lie before lists and rows: see `EventLog.span`."""

    timelines: Timelines
    user_U2: Tensor
    """Of each user, before the first relevant row of the split. (U + 1, 2)"""
    labelled_N2: Tensor
    """Of each row of `RankingRows.labelled`."""
    list_L2: Tensor | None = None
    """Of each list, where these have a relevant row each."""

    def of_lists(self, users_L: Tensor, lists: slice) -> Events:
        """Of some lists; `users_L`: the user of every list."""
        if self.list_L2 is not None:
            return self.events(self.list_L2[lists])
        return self.timelines.log.windows(self.user_U2[users_L[lists]], self.timelines.length)

    def events(self, span_B2: Tensor) -> Events:
        """What an encoder reads before rows, which share windows."""
        log, length, step = self.timelines
        return log.windows(span_B2, length, step=step)


def before(rows: Rows, wanted: Wanted, history: History, schema: Schema) -> Before:
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
