"""Requests -> replies with the current model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from torch import Tensor

from recsys_moe.inference.attribution.experts import ExpertShare
from recsys_moe.inference.cold_start.encode import ENTITIES
from recsys_moe.inference.predictor import Attribution, ColdUser, Predictor, Recommendation, Scores
from recsys_moe.inference.ranking.item_values import Value, item_values
from recsys_moe.serve import schemas
from recsys_moe.serve.metrics import Metrics
from recsys_moe.serve.models import Loaded
from recsys_moe.serve.request_types import exact, shown, whom
from recsys_moe.serve.schemas import (
    ExplainRequest,
    Pairs,
    RecommendRequest,
    SeenRequest,
    SimilarRequest,
)


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
        users = list(chain.from_iterable(whom(request.users) for request in requests))
        items = list(chain.from_iterable(whom(request.items) for request in requests))
        scores = loaded.predictor.score(users, items)
        replies = self._cut(scores, [len(request.users) for request in requests], loaded.version)
        for request, reply in zip(requests, replies, strict=True):
            reply.unused.extend(_unused_of_pairs(loaded.predictor, request))
        return replies

    def recommend(self, requests: list[RecommendRequest]) -> list[schemas.RecommendReply]:
        loaded = self._current()
        return [self._rankings(loaded, request) for request in requests]

    def explain(self, requests: list[ExplainRequest]) -> list[schemas.ExplainReply]:
        loaded = self._current()
        return [self._explanations(loaded, request) for request in requests]

    def similar(self, requests: list[SimilarRequest]) -> list[schemas.SimilarReply]:
        loaded = self._current()
        return [
            schemas.SimilarReply(
                model=loaded.version,
                item=request.item,
                items=_listed(
                    loaded.predictor,
                    loaded.predictor.similar(request.item, request.k),
                    request.columns,
                ),
            )
            for request in requests
        ]

    def seen(self, requests: list[SeenRequest]) -> list[schemas.SeenReply]:
        loaded = self._current()
        return [self._positives(loaded, request) for request in requests]

    def _positives(self, loaded: Loaded, request: SeenRequest) -> schemas.SeenReply:
        predictor = loaded.predictor
        positives_S = predictor.positives(request.user)
        return schemas.SeenReply(
            model=loaded.version,
            user=request.user,
            unseen_user=predictor.is_unseen_user(request.user),
            total=len(positives_S),
            items=items_of(predictor, positives_S[: request.k], request.columns),
        )

    def _rankings(self, loaded: Loaded, request: RecommendRequest) -> schemas.RecommendReply:
        users = whom(request.everybody)
        unused = [
            schemas.UnusedReply(**vars(loaded.predictor.unused(user)))
            if isinstance(user, ColdUser)
            else None
            for user in users
        ]
        lists = loaded.predictor.recommend(
            users,
            request.k,
            exclude_seen=request.exclude_seen,
            candidates=request.candidates,
            where=request.where,
            score=request.score,
        )
        unseen = [loaded.predictor.is_unseen_user(user) for user in users]
        self._metrics.unseen("user", sum(unseen))
        rankings = [
            schemas.Ranking(
                user=shown(user),
                unseen_user=flag,
                unused=left,
                items=_listed(loaded.predictor, entries, request.columns),
            )
            for user, flag, left, entries in zip(
                request.everybody, unseen, unused, lists, strict=True
            )
        ]
        return schemas.RecommendReply(model=loaded.version, rankings=rankings)

    def _explanations(self, loaded: Loaded, request: ExplainRequest) -> schemas.ExplainReply:
        users, items = whom(request.users), whom(request.items)
        scores = loaded.predictor.score(users, items, calibrate=False)
        unseen_user, unseen_item = self._unseen(scores)
        tasks = _plain(scores.tasks)
        explanations = loaded.predictor.explain(users, items)
        attributions: list[dict[str, list[Attribution]]] = [{}] * len(users)
        if request.attributions:
            attributions = loaded.predictor.attributions(users, items, request.attributions)
        pairs = [
            schemas.Explanation(
                user=shown(user),
                item=shown(item),
                unseen_user=unseen_user[row],
                unseen_item=unseen_item[row],
                tasks={
                    task: schemas.TaskExplanation(
                        score=tasks[task][row],
                        experts=_shares(experts),
                        attributions=[
                            schemas.AttributionReply(**one.as_object())
                            for one in attributions[row].get(task, [])
                        ],
                    )
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
                    unused=[],
                )
            )
            start += size
        return replies


def _unused_of_pairs(predictor: Predictor, pairs: Pairs) -> Iterator[schemas.PairUnused]:
    for entity, named in zip(ENTITIES, (whom(pairs.users), whom(pairs.items)), strict=True):
        for row, one in enumerate(named):
            if isinstance(one, ColdUser) and (unused := predictor.unused(one, entity=entity)):
                yield schemas.PairUnused(row=row, entity=entity, **vars(unused))


def _plain(columns: dict[str, Tensor]) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in columns.items()}


def items_of(
    predictor: Predictor, index_K: Tensor, columns: Sequence[str] = ()
) -> list[schemas.Item]:
    """Items by their indices. Raises ConfigError for an unknown column."""
    table = predictor.artifact.items
    named = ["item", *{"title"}.intersection(table.column_names)]
    rows = zip(
        item_values(table, index_K, named), item_values(table, index_K, columns), strict=True
    )
    return [
        schemas.Item(item=exact(row["item"]), title=_text(row.get("title")), columns=values)
        for row, values in rows
    ]


def _text(value: Value) -> str | None:
    return None if value is None else str(value)


def _listed(
    predictor: Predictor, entries: list[Recommendation], columns: Sequence[str]
) -> list[schemas.RankedItem]:
    index_K, _ = predictor.items.index([entry.item for entry in entries])
    rows = item_values(predictor.artifact.items, index_K, columns)
    return [
        schemas.RankedItem(**vars(entry), columns=row)
        for entry, row in zip(entries, rows, strict=True)
    ]


def _shares(experts: list[ExpertShare]) -> list[schemas.Share]:
    total = sum(abs(expert.contribution) for expert in experts) or 1.0
    return [
        schemas.Share(**vars(expert), share=abs(expert.contribution) / total) for expert in experts
    ]
