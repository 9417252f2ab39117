"""Logits and routings of dense indices, for evaluation and reports.

Axes: U users, N items of the catalogue, B pairs, L columns of logits, C context features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.inference.ranking.top_items import TopItems
from recsys_moe.inference.scoring.pair_scores import PairScorer
from recsys_moe.kinds import first_columns, kind_of
from recsys_moe.model.draws import Draws
from recsys_moe.model.ranker import Ranker
from recsys_moe.model.request import Events, Moment, Request, of_users
from recsys_moe.routers import Routing


class IndexScorer:
    """The part of a Predictor that takes indices; contexts are those of `Request`."""

    artifact: Artifact
    _draws: Draws
    _ranker: Ranker
    _pair_scores: PairScorer
    _top_items: TopItems

    @property
    def rows_are_independent(self) -> bool:
        """Are scores independent of the other pairs of a batch?"""
        return self._draws.rows_are_independent

    @cached_property
    def prediction_names(self) -> list[str]:
        """Names of what is predicted: of each task, or of each class and the task."""
        return [
            name
            for task in self.artifact.schema.tasks
            for name in dict.fromkeys([*kind_of(task).columns(task.name), task.name])
        ]

    @cached_property
    def columns(self) -> list[int]:
        """Where the logits of each task begin: one with classes has a column per class."""
        return first_columns([kind_of(task) for task in self.artifact.schema.tasks])

    def seen(self, user: int) -> Tensor:
        """Indices of the items with a positive training row of the user, in their order."""
        return self._top_items.seen(user)

    @torch.inference_mode()
    def routings(self, user_B: Tensor, item_B: Tensor) -> list[Routing]:
        """Routing per task of pairs of indices, routed together; empty without routers."""
        with self._draws.seeded():
            return self.artifact.model.routings(Request(user_B, item_B))

    def catalogue_logits(
        self,
        user_U: Tensor,
        task: int,
        context_UC: Tensor | None = None,
        events: Events | None = None,
        moment: Moment | None = None,
    ) -> Tensor:
        """What lists of user indices rank all items of the catalogue by (U, N): logits, with
        data.list_prior."""
        users = of_users(user_U)._replace(context=context_UC, events=events, moment=moment)
        item_N = torch.arange(self.artifact.schema.item.size)
        logits_UN = self._ranker.grid(users, item_N, self.columns[task])
        if self._top_items.prior_N is None:
            return logits_UN
        return self._top_items.ranked_by(logits_UN, self.artifact.schema.tasks[task], item_N)

    def checked_retrieve(self, retrieve: int | None, k: int, task: int) -> int | None:
        """See `Retrievers.checked`."""
        return self._top_items.retrievers.checked(
            retrieve, k, [self.artifact.schema.tasks[task].name]
        )

    def retrieved_logits(
        self, users: Request, task: int, retrieve: int, out: Sequence[Tensor]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Per user the retrieved items, none of the user's `out`, and what they are ranked by."""
        one = self.artifact.schema.tasks[task]
        every_N = torch.arange(self.artifact.schema.item.size)
        found = self._top_items.retrieved(users, every_N, out, (one.name, retrieve))
        for item_C, logits_C in zip(*found, strict=True):
            yield item_C, self._top_items.ranked_by(logits_C, one, item_C)

    def pair_logits(
        self,
        user_B: Tensor,
        item_B: Tensor,
        context_BC: Tensor | None = None,
        events: Events | None = None,
        moment: Moment | None = None,
    ) -> Tensor:
        """Logits (B, L) of pairs of indices, see `columns`."""
        request = Request(user_B, item_B, context_BC, events, moment=moment)
        return self._pair_scores.logits(request.with_items(item_B))

    @cached_property
    def popularity(self) -> Tensor:
        """Users with a positive training row per item index. (N,)"""
        size = self.artifact.schema.item.size
        return torch.bincount(self.artifact.seen["items"].long(), minlength=size)[:size]
