"""What the lists of a top-N evaluation see of the past. Axes: U users, N rows, B rows or lists."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recsys_moe.data.columns import Rows
from recsys_moe.data.rows import History, Timelines
from recsys_moe.inference.evaluation.ranking_successive import Successive
from recsys_moe.inference.evaluation.ranking_wanted import Wanted
from recsys_moe.model.request import Events, Moment
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
    user_time_U: Tensor | None = None
    """When the first relevant row of each user is; None for models that do not read it. (U + 1,)"""
    labelled_time_N: Tensor | None = None
    list_time_L: Tensor | None = None

    def of(self, lists: Successive) -> Before:
        """With lists of one relevant row each."""
        return replace(self, list_L2=lists.rows.history, list_time_L=lists.rows.time)

    def of_lists(self, users_L: Tensor, lists: slice) -> tuple[Events | None, Moment | None]:
        """Of some lists; `users_L`: the user of every list."""
        if self.list_L2 is not None:
            return self._told(self.list_L2, self.list_time_L, lists)
        return self._told(self.user_U2, self.user_time_U, users_L[lists].long(), is_whole=True)

    def of_labelled(self, row_B: Tensor) -> tuple[Events | None, Moment | None]:
        """Of some rows of `RankingRows.labelled`."""
        return self._told(self.labelled_N2, self.labelled_time_N, row_B)

    def _told(
        self,
        span_N2: Tensor,
        time_N: Tensor | None,
        rows: Tensor | slice,
        *,
        is_whole: bool = False,
    ) -> tuple[Events | None, Moment | None]:
        span_B2, lines = span_N2[rows], self.timelines
        moment = None if time_N is None else lines.moment(span_B2, time_N[rows])
        return lines.events(span_B2, is_whole=is_whole), moment


def before(rows: Rows, wanted: Wanted, history: History, schema: Schema) -> Before:
    """The spans of lists and labelled rows; `wanted` tells the relevant ones."""
    log = history.timelines.log
    user_U2 = log.whole(torch.arange(schema.user.size + 1)).long()
    user_time_U, labelled, times = torch.full((len(user_U2),), torch.inf).double(), [], []
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
        if chunk.time is not None:
            user_time_U.scatter_reduce_(0, user_N[wanted_N], chunk.time[wanted_N], "amin")
            times.append(chunk.time[known_N])
    found = Before(history.timelines, user_U2, torch.cat(labelled))
    if not times:
        return found
    return replace(found, user_time_U=user_time_U, labelled_time_N=torch.cat(times))
