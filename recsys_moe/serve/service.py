"""The parts of a running service: the model, its queues, its limits, its counters."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pyarrow as pa

import recsys_moe
from recsys_moe.errors import UserError
from recsys_moe.inference.item_filters import filter_columns
from recsys_moe.serve import http, schemas
from recsys_moe.serve.batcher import Batcher, Busy, Lane
from recsys_moe.serve.limits import Limits
from recsys_moe.serve.metrics import Metrics
from recsys_moe.serve.models import Models
from recsys_moe.serve.schemas import Pairs, RecommendRequest, exact
from recsys_moe.serve.scoring import Scoring

BATCH_ROWS = 1024
"""Pairs that run together: about 20 ms that another request may have to wait for them."""
EXAMPLES = 8
"""Users that /model names to try it with."""


class Service:
    """What the routes call."""

    def __init__(
        self,
        models: Models,
        metrics: Metrics,
        limits: Limits,
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
            ],
            metrics,
        )

    async def predict(self, pairs: Pairs) -> schemas.PredictReply:
        _check_lengths(pairs)
        return await self._run("predict", pairs, len(pairs.users))

    async def recommend(self, request: RecommendRequest) -> schemas.RecommendReply:
        return await self._run("recommend", request, len(request.users))

    async def explain(self, pairs: Pairs) -> schemas.ExplainReply:
        _check_lengths(pairs)
        return await self._run("explain", pairs, len(pairs.users))

    def describe(self) -> schemas.ModelReply:
        """What /model shows. No paths: they are nobody's business."""
        loaded = self.models.current
        artifact = loaded.predictor.artifact
        schema = artifact.schema
        return schemas.ModelReply(
            model=loaded.version,
            recsys_moe=recsys_moe.__version__,
            data=schema.name,
            users=schema.user.size,
            items=schema.item.size,
            example_users=_spread(loaded.predictor.users.ids),
            tasks=[
                schemas.TaskInfo(name=task.name, kind=task.kind, low=task.low, high=task.high)
                for task in schema.tasks
            ],
            score_names=list(loaded.predictor.score_names),
            item_columns=filter_columns(artifact.items),
            rows_are_independent=loaded.predictor.rows_are_independent,
            settings=artifact.config.model.model_dump(mode="json"),
            metrics=artifact.card,
            limits=asdict(self.limits),
        )

    async def _run(self, lane: str, request: Any, size: int) -> Any:
        """Raises 422 for what the predictor refuses, 429 for a full queue, 504 when it is late."""
        seconds = self.limits.timeout
        try:
            return await self.batcher.submit(lane, request, size, seconds)
        except Busy:
            message = f"too many {lane} requests are waiting; try again in a second"
            raise http.refuse(429, message, {"Retry-After": "1"}) from None
        except TimeoutError:
            raise http.refuse(504, f"no answer within {seconds:g} s; ask for less") from None
        except UserError as error:
            raise http.refuse(422, str(error).removeprefix("--")) from None


def _spread(ids: pa.Array) -> list[int | str]:
    """Up to EXAMPLES of the ids, at equal distances from the first one on."""
    step = max(1, len(ids) // EXAMPLES)
    return [exact(raw) for raw in ids[::step][:EXAMPLES].to_pylist()]


def _check_lengths(pairs: Pairs) -> None:
    users, items = len(pairs.users), len(pairs.items)
    if users != items:
        raise http.refuse(422, f"users and items must be as many, got {users} and {items}")
