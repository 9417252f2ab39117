"""Logits of many items per user. Axes: U users, N items, B pairs, T tasks, D width of a vector."""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch
from torch import Tensor

from recsys_moe.model.draws import Draws
from recsys_moe.model.output import Output
from recsys_moe.model.request import Moment, Request, of_items
from recsys_moe.model.trend import Trend

ROWS_PER_CHUNK = 4096
"""Pairs computed at a time: what they need stays in a core's cache, and memory is bounded."""


class Scorer(Protocol):
    """What a ranker asks of a Recommender."""

    @property
    def num_items(self) -> int: ...
    @property
    def trend(self) -> Trend | None: ...
    def encode_users(self, request: Request) -> Tensor: ...
    def encode_items(self, request: Request) -> Tensor: ...
    def known(self, request: Request) -> Request: ...
    def score(self, user_BD: Tensor, item_BD: Tensor, request: Request) -> Output: ...
    def with_trend(self, output: Output, user_BD: Tensor, moment: Moment | None) -> Output: ...
    def with_biases(self, output: Output, request: Request) -> Output: ...


class Ranker:
    """Logits of many items per user, by chunks of `Recommender.score`. Thread-safe.

    A pair's logit is that of a ranking of the whole catalogue for that user: where rows of a batch
    compete in a router, or a router draws, it does not depend on which items are asked for. What
    `users` says of items is not read.
    """

    model: Any

    def __init__(self, model: Scorer, draws: Draws, whole_rows: int) -> None:
        """`whole_rows`: consecutive rows that are routed together, as in `Predictor.score`."""
        self.model, self.draws, self.whole_rows = model, draws, whole_rows

    def of(self, model: Scorer) -> Ranker:
        """The same for a model that differs in its users alone, such as cold-start users."""
        result = copy.copy(self)
        result.model = model
        return result

    @torch.inference_mode()
    def grid(self, users: Request, item_N: Tensor, column: int) -> Tensor:
        """Logits (U, N) of every user for every item index; `column`: of the logits."""
        logits_UN = torch.empty(users.rows, len(item_N))
        at_once = max(1, ROWS_PER_CHUNK // max(1, len(item_N)))
        for start in range(0, users.rows, at_once):
            part = users.take(slice(start, start + at_once))
            place_B = torch.arange(part.rows).repeat_interleave(len(item_N))
            logits_B = self.pairs(part, place_B, item_N.repeat(part.rows), column)
            logits_UN[start : start + at_once] = logits_B.view(part.rows, -1)
        return logits_UN

    @torch.inference_mode()
    def pairs(self, users: Request, place_B: Tensor, item_B: Tensor, column: int) -> Tensor:
        """Logits (B,) of the pairs (users[place_B], item_B); `place_B` must not decrease."""
        if self.draws.rows_are_independent:
            return self._logits(users, place_B, item_B, ROWS_PER_CHUNK)[:, column]
        every_N, parts = torch.arange(self.model.num_items), [torch.empty(0)]
        for place in range(users.rows):
            with self.draws.seeded():
                place_N = torch.full_like(every_N, place)
                logits_NT = self._logits(users, place_N, every_N, self.whole_rows)
            parts.append(logits_NT[item_B[place_B == place], column])
        return torch.cat(parts)

    def _logits(self, users: Request, place_B: Tensor, item_B: Tensor, rows: int) -> Tensor:
        """(B, T), at most `rows` at a time."""
        model = self.model
        user_UD, users = model.encode_users(users), model.known(users)
        parts = []
        for place, item in zip(place_B.split(rows), item_B.split(rows), strict=True):
            request = users.take(place).with_items(item)
            item_BD = model.encode_items(of_items(item))
            user_BD = user_UD.index_select(0, place)
            output = model.score(user_BD, item_BD, request)
            output = model.with_trend(output, user_BD, request.moment)
            parts.append(model.with_biases(output, request).logits_BT)
        return torch.cat(parts)

    def _trend(
        self, users: Request, user_UD: Tensor, place_B: Tensor, item_B: Tensor, column: int
    ) -> Tensor:
        """What age and popularity of items add to the logits (B,) of a column."""
        trend, moment = self.model.trend, users.moment
        if trend is None or moment is None:
            return torch.zeros(len(place_B))
        moment = moment.each(lambda one: one[place_B]).about(item_B)
        added_B: Tensor = trend(user_UD[place_B], moment)[:, column]
        return added_B

    @torch.inference_mode()
    def logits(self, request: Request) -> Tensor:
        """Logits (B, T) of many pairs of known or unseen ids, as of the model's forward pass."""
        logits_BT: Tensor = self.model(request).logits_BT
        return logits_BT

    def warm_up(self) -> None:
        """Fill the caches that the first rankings would otherwise fill."""
