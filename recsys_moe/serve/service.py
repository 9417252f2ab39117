"""The parts of a running service: the model, its queues, its limits, its counters; its work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from itertools import chain
from typing import Any

import pyarrow as pa
from torch import Tensor

import recsys_moe
from recsys_moe.errors import UserError
from recsys_moe.inference.explanation import ExpertShare
from recsys_moe.inference.item_filters import filter_columns
from recsys_moe.inference.predictor import Recommendation, Scores
from recsys_moe.serve import http, schemas
from recsys_moe.serve.batcher import Batcher, Busy, Lane
from recsys_moe.serve.limits import Limits
from recsys_moe.serve.metrics import Metrics
from recsys_moe.serve.models import Loaded, Models
from recsys_moe.serve.schemas import Pairs, RecommendRequest, exact

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


class Scoring:
    """Requests -> replies with the current model; runs in the worker, one call at a time."""

    def __init__(self, current: Callable[[], Loaded], metrics: Metrics) -> None:
        self._current = current
        self._metrics = metrics

    def predict(self, requests: list[Pairs]) -> list[schemas.PredictReply]:
        """Together where rows do not influence each other, else one request after the other."""
        loaded = self._current()
        if len(requests) > 1 and not loaded.predictor.rows_are_independent:
            return [reply for request in requests for reply in self.predict([request])]
        users = list(chain.from_iterable(request.users for request in requests))
        items = list(chain.from_iterable(request.items for request in requests))
        scores = loaded.predictor.score(users, items)
        return self._cut(scores, [len(request.users) for request in requests], loaded.version)

    def recommend(self, requests: list[RecommendRequest]) -> list[schemas.RecommendReply]:
        loaded = self._current()
        return [self._rankings(loaded, request) for request in requests]

    def explain(self, requests: list[Pairs]) -> list[schemas.ExplainReply]:
        loaded = self._current()
        return [self._explanations(loaded, request) for request in requests]

    def _rankings(self, loaded: Loaded, request: RecommendRequest) -> schemas.RecommendReply:
        lists = loaded.predictor.recommend(
            request.users,
            request.k,
            exclude_seen=request.exclude_seen,
            candidates=request.candidates,
            where=request.where,
            score=request.score,
        )
        unseen = [loaded.predictor.is_unseen_user(user) for user in request.users]
        self._metrics.unseen("user", sum(unseen))
        rankings = [
            schemas.Ranking(
                user=user, unseen_user=flag, items=[_ranked(entry) for entry in entries]
            )
            for user, flag, entries in zip(request.users, unseen, lists, strict=True)
        ]
        return schemas.RecommendReply(model=loaded.version, rankings=rankings)

    def _explanations(self, loaded: Loaded, request: Pairs) -> schemas.ExplainReply:
        scores = loaded.predictor.score(request.users, request.items, calibrate=False)
        unseen_user, unseen_item = self._unseen(scores)
        tasks = _plain(scores.tasks)
        explanations = loaded.predictor.explain(request.users, request.items)
        pairs = [
            schemas.Explanation(
                user=user,
                item=item,
                unseen_user=unseen_user[row],
                unseen_item=unseen_item[row],
                tasks={
                    task: schemas.TaskExplanation(score=tasks[task][row], experts=_shares(experts))
                    for task, experts in explanations[row].items()
                },
            )
            for row, (user, item) in enumerate(zip(request.users, request.items, strict=True))
        ]
        return schemas.ExplainReply(model=loaded.version, pairs=pairs)

    def _unseen(self, scores: Scores) -> tuple[list[bool], list[bool]]:
        """Per pair: is the user unseen, is the item? They are counted."""
        users, items = scores.unseen_user.tolist(), scores.unseen_item.tolist()
        self._metrics.unseen("user", sum(users))
        self._metrics.unseen("item", sum(items))
        return users, items

    def _cut(self, scores: Scores, sizes: list[int], version: str) -> list[schemas.PredictReply]:
        """One reply per request out of the scores of all of them."""
        users, items = self._unseen(scores)
        tasks, calibrated = _plain(scores.tasks), _plain(scores.calibrated)
        replies, start = [], 0
        for size in sizes:
            rows = slice(start, start + size)
            replies.append(
                # Our own numbers need no validation, and this is the hottest path there is.
                schemas.PredictReply.model_construct(
                    model=version,
                    scores={name: values[rows] for name, values in tasks.items()},
                    calibrated={name: values[rows] for name, values in calibrated.items()},
                    unseen_user=users[rows],
                    unseen_item=items[rows],
                )
            )
            start += size
        return replies


def _plain(columns: dict[str, Tensor]) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in columns.items()}


def _ranked(entry: Recommendation) -> schemas.RankedItem:
    return schemas.RankedItem(
        rank=entry.rank, item=exact(entry.item), title=entry.title, scores=entry.scores
    )


def _shares(experts: list[ExpertShare]) -> list[schemas.Share]:
    total = sum(abs(expert.contribution) for expert in experts)
    return [
        schemas.Share(
            expert=expert.expert,
            weight=expert.weight,
            contribution=expert.contribution,
            share=abs(expert.contribution) / total if total else 0.0,
        )
        for expert in experts
    ]


def _spread(ids: pa.Array) -> list[int | str]:
    """Up to EXAMPLES of the ids, at equal distances from the first one on."""
    step = max(1, len(ids) // EXAMPLES)
    return [exact(raw) for raw in ids[::step][:EXAMPLES].to_pylist()]


def _check_lengths(pairs: Pairs) -> None:
    users, items = len(pairs.users), len(pairs.items)
    if users != items:
        raise http.refuse(422, f"users and items must be as many, got {users} and {items}")
