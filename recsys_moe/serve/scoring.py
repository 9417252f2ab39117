"""Requests -> replies with the current model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate, chain, islice
from typing import Any

from recsys_moe.inference.events.store import Observed
from recsys_moe.inference.predictor import Attribution, Scores
from recsys_moe.inference.ranking.formula import formula_of
from recsys_moe.serve.metrics import Metrics
from recsys_moe.serve.models import Loaded
from recsys_moe.serve.replies import (
    EventsReply,
    ExplainReply,
    Explanation,
    PairUnused,
    PredictReply,
    Ranking,
    RecommendReply,
    RejectedEvent,
    SeenReply,
    SimilarReply,
    TaskExplanation,
    UnusedReply,
)
from recsys_moe.serve.reply_parts import (
    attributions_of,
    items_of,
    plain_columns,
    ranked_items,
    shares_of,
    unused_by_row,
    unused_of_contexts,
    unused_of_pairs,
    with_contexts,
)
from recsys_moe.serve.request_types import events_by_row, events_of, plain_events, shown, whom
from recsys_moe.serve.requests import (
    EventsRequest,
    ExplainRequest,
    PredictRequest,
    RecommendRequest,
    SeenRequest,
    SimilarRequest,
)


class Scoring:
    """Requests -> replies with the current model; runs in the worker, one call at a time."""

    def __init__(self, current: Callable[[], Loaded], metrics: Metrics) -> None:
        self._current = current
        self._metrics = metrics

    def predict(self, requests: list[PredictRequest]) -> list[PredictReply]:
        """Together where rows do not influence each other, else one request after the other."""
        loaded = self._current()
        predictor = loaded.predictor
        if len(requests) > 1 and not predictor.rows_are_independent:
            return [reply for request in requests for reply in self.predict([request])]
        users = predictor.resolve(whom(chain.from_iterable(one.users for one in requests)))
        items = predictor.resolve(
            whom(chain.from_iterable(one.items for one in requests)), entity="item"
        )
        context = predictor.context.read_all([(one.context, one.rows) for one in requests])
        scores = predictor.score(users, items, context=context, events=_events(requests))
        unused = [*unused_of_pairs(users, "user"), *unused_of_pairs(items, "item")]
        unused += unused_of_contexts(context)
        return self._cut(scores, unused, [request.rows for request in requests], loaded.version)

    def recommend(self, requests: list[RecommendRequest]) -> list[RecommendReply]:
        """Together where rows do not influence each other. All `asked` alike."""
        loaded, first = self._current(), requests[0]
        predictor = loaded.predictor
        if len(requests) > 1 and not predictor.rows_are_independent:
            return [reply for request in requests for reply in self.recommend([request])]
        everybody = [*chain.from_iterable(one.everybody for one in requests)]
        users = predictor.resolve(whom(everybody))
        context = predictor.context.read_all([(one.context, one.rows) for one in requests])
        lists = predictor.recommend(
            users,
            first.k,
            context=context,
            events=_events(requests),
            exclude_seen=first.exclude_seen,
            candidates=first.candidates,
            where=first.where,
            score=first.score,
            retrieve=_retrieve(loaded, first),
        )
        unseen = predictor.are_unseen_users(users)
        unused = with_contexts(unused_by_row(users), context)
        columns = chain.from_iterable([one.columns] * one.rows for one in requests)
        rankings = [
            Ranking(
                user=shown(user),
                unseen_user=unseen[row],
                unused=UnusedReply(**vars(unused[row])) if row in unused else None,
                items=ranked_items(predictor, lists[row], named),
            )
            for row, (user, named) in enumerate(zip(everybody, columns, strict=True))
        ]
        self._metrics.unseen("user", sum(unseen))  # once: a batch that fails runs again in parts
        left = iter(rankings)
        return [
            RecommendReply(model=loaded.version, rankings=[*islice(left, one.rows)])
            for one in requests
        ]

    def explain(self, request: ExplainRequest) -> ExplainReply:
        loaded = self._current()
        predictor = loaded.predictor
        users = predictor.resolve(whom(request.users))
        items = predictor.resolve(whom(request.items), entity="item")
        context = predictor.context.read_rows(request.context, request.rows)
        events = events_of(request.events, request.rows) if request.events else None
        asked: dict[str, Any] = {"context": context, "events": events}
        scores = predictor.score(users, items, calibrate=False, **asked)
        tasks = plain_columns(scores.tasks)
        experts = predictor.explain(users, items, **asked)
        attributions: list[dict[str, list[Attribution]]] = [{}] * request.rows
        if request.attributions:
            most = request.attributions
            attributions = predictor.attributions(users, items, most, **asked)

        def explained(row: int) -> dict[str, TaskExplanation]:
            return {
                task: TaskExplanation(
                    score=tasks[task][row],
                    experts=shares_of(shares),
                    attributions=attributions_of(attributions[row].get(task, [])),
                )
                for task, shares in experts[row].items()
                if task in tasks
            }

        pairs = [
            Explanation(
                user=shown(user),
                item=shown(item),
                unseen_user=unseen_user,
                unseen_item=unseen_item,
                tasks=explained(row),
            )
            for row, (user, item, unseen_user, unseen_item) in enumerate(
                zip(request.users, request.items, *self._unseen(scores), strict=True)
            )
        ]
        return ExplainReply(model=loaded.version, pairs=pairs)

    def observe(self, requests: list[EventsRequest]) -> list[EventsReply]:
        """All are stored in one go: in the file of events, where there is one, by one fsync."""
        loaded = self._current()
        events = [plain_events(one.events) for one in requests]
        found = loaded.predictor.observe([*chain.from_iterable(events)]).outcomes
        ends = [*accumulate(map(len, events))]
        parts = [
            Observed(found[end - len(own) : end]) for own, end in zip(events, ends, strict=True)
        ]
        self._metrics.observed(Observed(found))
        return [
            EventsReply(
                model=loaded.version,
                stored=part.stored,
                duplicates=part.duplicates,
                rejected=[
                    RejectedEvent(row=row, reason=reason) for row, reason in part.rejected.items()
                ],
            )
            for part in parts
        ]

    def similar(self, request: SimilarRequest) -> SimilarReply:
        loaded = self._current()
        neighbours = loaded.predictor.similar(request.item, request.k)
        items = ranked_items(loaded.predictor, neighbours, request.columns)
        return SimilarReply(model=loaded.version, item=request.item, items=items)

    def seen(self, request: SeenRequest) -> SeenReply:
        loaded = self._current()
        positives_S = loaded.predictor.positives(request.user)
        return SeenReply(
            model=loaded.version,
            user=request.user,
            unseen_user=loaded.predictor.are_unseen_users([request.user])[0],
            total=len(positives_S),
            items=items_of(loaded.predictor, positives_S[: request.k], request.columns),
        )

    def _unseen(self, scores: Scores) -> tuple[list[bool], list[bool]]:
        """Per pair: is the user unseen, is the item? They are counted."""
        users, items = scores.unseen_user.tolist(), scores.unseen_item.tolist()
        self._metrics.unseen("user", sum(users))
        self._metrics.unseen("item", sum(items))
        return users, items

    def _cut(
        self, scores: Scores, unused: list[PairUnused], sizes: list[int], version: str
    ) -> list[PredictReply]:
        """One reply per request out of the scores of all of them."""
        users, items = self._unseen(scores)
        tasks, calibrated = plain_columns(scores.tasks), plain_columns(scores.calibrated)
        replies, start = [], 0
        for size in sizes:
            rows = slice(start, start + size)
            own = [one for one in unused if start <= one.row < start + size]
            replies.append(
                # Our own numbers need no validation, and this is the hottest path there is.
                PredictReply.model_construct(
                    model=version,
                    scores={name: values[rows] for name, values in tasks.items()},
                    calibrated={name: values[rows] for name, values in calibrated.items()},
                    classes={name: names[rows] for name, names in scores.classes.items()},
                    unseen_user=users[rows],
                    unseen_item=items[rows],
                    unused=[one.model_copy(update={"row": one.row - start}) for one in own],
                )
            )
            start += size
        return replies


def _events(requests: Sequence[PredictRequest] | Sequence[RecommendRequest]) -> Any:
    """For the predictor; None without any."""
    if not any(one.events for one in requests):
        return None
    if len(requests) == 1:
        return events_of(requests[0].events, requests[0].rows)  # errors name its places
    lists = (events_by_row(one.events, one.rows) for one in requests)
    return [*chain.from_iterable(lists)]


def asked(request: RecommendRequest) -> Hashable:
    """What lists are made from besides users, contexts and events; columns are added later."""
    candidates = None if request.candidates is None else tuple(request.candidates)
    where = tuple(request.where)
    return request.k, request.exclude_seen, request.score, where, candidates


def _retrieve(loaded: Loaded, request: RecommendRequest) -> int | None:
    """Items per user to score; all for longer lists, and by another score, which has no index."""
    if loaded.retrieve is None or request.k > loaded.retrieve:
        return None
    tasks = loaded.predictor.tasks
    is_default = formula_of(request.score, tasks) == formula_of(None, tasks)
    return loaded.retrieve if is_default else None
