"""The parts of a running service: the model, its queues, its limits, its counters."""

from __future__ import annotations

from typing import Any

from recsys_moe.errors import UserError
from recsys_moe.serve import http, schemas
from recsys_moe.serve.batcher import Batcher, Busy, Lane
from recsys_moe.serve.description import ModelReply, describe
from recsys_moe.serve.limits import Limits
from recsys_moe.serve.metrics import Metrics
from recsys_moe.serve.models import Models
from recsys_moe.serve.schemas import (
    ExplainRequest,
    Pairs,
    RecommendRequest,
    SeenRequest,
    SimilarRequest,
)
from recsys_moe.serve.scoring import Scoring

BATCH_ROWS = 1024
"""Pairs that run together: about 20 ms that another request may have to wait for them."""


class Service:
    """What the routes call."""

    def __init__(
        self,
        models: Models,
        metrics: Metrics,
        limits: Limits,
        *,
        key: str | None = None,
        hosts: frozenset[bytes] | None = None,
    ) -> None:
        """`key`: the API key that requests must carry, if any. `hosts`: what they may call us."""
        self.models, self.metrics, self.limits = models, metrics, limits
        self.key, self.hosts = key, hosts
        self.draining = False
        scoring = Scoring(lambda: models.current, metrics)
        others = limits.max_queue_users

        self.batcher = Batcher(
            [
                Lane("predict", scoring.predict, BATCH_ROWS, limits.max_queue),
                Lane("recommend", scoring.recommend, 1, others),
                Lane("explain", scoring.explain, 1, others),
                Lane("similar", scoring.similar, 1, others),
                Lane("seen", scoring.seen, 1, others),
            ],
            metrics,
            limits.max_requests,
        )

    async def predict(self, pairs: Pairs) -> schemas.PredictReply:
        _check_lengths(pairs)
        return await self._run("predict", pairs, len(pairs.users))

    async def recommend(self, request: RecommendRequest) -> schemas.RecommendReply:
        # Users up to their limit and somebody new may be one more than can wait: not if alone.
        size = min(len(request.everybody), self.limits.max_queue_users)
        return await self._run("recommend", request, size)

    async def explain(self, pairs: ExplainRequest) -> schemas.ExplainReply:
        _check_lengths(pairs)
        return await self._run("explain", pairs, len(pairs.users))

    async def similar(self, request: SimilarRequest) -> schemas.SimilarReply:
        return await self._run("similar", request, 1)

    async def seen(self, request: SeenRequest) -> schemas.SeenReply:
        return await self._run("seen", request, 1)

    def describe(self) -> ModelReply:
        """What /model shows."""
        return describe(self.models.current, self.limits)

    async def _run(self, lane: str, request: Any, size: int) -> Any:
        """Raises 422 for what the predictor refuses, 429 for a full queue, 504 when it is late."""
        seconds = self.limits.timeout
        try:
            return await self.batcher.submit(lane, request, size, seconds)
        except Busy:
            message = f"too many {lane} requests are waiting; try again in a second"
            raise http.refuse(429, message, http.LATER) from None
        except TimeoutError:
            raise http.refuse(504, f"no answer within {seconds:g} s; ask for less") from None
        except UserError as error:
            raise http.refuse(422, str(error).removeprefix("--")) from None


def _check_lengths(pairs: Pairs) -> None:
    users, items = len(pairs.users), len(pairs.items)
    if users != items:
        raise http.refuse(422, f"users and items must be as many, got {users} and {items}")
