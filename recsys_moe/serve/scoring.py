"""Requests -> replies with the current model. Runs where the batcher says, one call at a time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from torch import Tensor

from recsys_moe.inference.explanation import ExpertShare
from recsys_moe.inference.predictor import Recommendation, Scores
from recsys_moe.serve import schemas
from recsys_moe.serve.metrics import Metrics
from recsys_moe.serve.models import Loaded
from recsys_moe.serve.schemas import Pairs, RecommendRequest


class Scoring:
    """The three kinds of work."""

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
        rank=entry.rank, item=schemas.exact(entry.item), title=entry.title, scores=entry.scores
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
