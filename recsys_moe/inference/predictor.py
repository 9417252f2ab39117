"""Scores, rankings, neighbours and explanations on raw ids. Never imports Lightning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from torch import Tensor

from recsys_moe.artifact.model_folder import Artifact, load_artifact
from recsys_moe.errors import DataError
from recsys_moe.inference.attribution.attribution import Attribution
from recsys_moe.inference.attribution.features import Attributor
from recsys_moe.inference.cold_start.encode import ColdStart
from recsys_moe.inference.cold_start.model import ColdStartVectors
from recsys_moe.inference.cold_start.whom import (
    ColdItem,
    ColdUser,
    Entity,
    RawId,
    Resolved,
    Unused,
    Whom,
    plain_history,
)
from recsys_moe.inference.context import Context, context_reader
from recsys_moe.inference.events.live import LiveEvents
from recsys_moe.inference.events.observed import Event
from recsys_moe.inference.events.store import EventStore, Observed
from recsys_moe.inference.events.user_events import RowEvents
from recsys_moe.inference.frames import ranked_frame, scored_frame
from recsys_moe.inference.plain import plain, plain_list, whole_number
from recsys_moe.inference.ranking.formula import formula_of, score_names
from recsys_moe.inference.ranking.item_filters import allowed_items
from recsys_moe.inference.ranking.top_items import Recommendation, TopItems
from recsys_moe.inference.scoring.by_index import IndexScorer
from recsys_moe.inference.scoring.pair_scores import PairScorer, Scores, whole_batch
from recsys_moe.inference.vocabulary import Ids, Vocabulary
from recsys_moe.model.expert_shares import ExpertShare
from recsys_moe.model.request import Request, of_users

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Attribution", "ColdItem", "ColdUser", "Event", "EventStore", "ExpertShare", "Observed"]
__all__ += ["Predictor", "Recommendation", "Scores", "Vocabulary"]


class Predictor(IndexScorer, LiveEvents):
    """A model folder that scores raw ids. Thread-safe.

    >>> predictor = Predictor.load("runs/first")          # doctest: +SKIP
    >>> predictor.score([1, 2], [50, 260]).tasks["watch"]  # doctest: +SKIP
    """

    def __init__(self, artifact: Artifact, store: EventStore | None = None) -> None:
        self.artifact = artifact = replace(artifact, model=artifact.model.for_inference())
        self.tasks = artifact.schema.tasks
        self.users = Vocabulary(artifact.schema.user, artifact.users["user"])
        self.items = Vocabulary(artifact.schema.item, artifact.items["item"])
        rows = whole_batch(artifact.config.model.eval_rows)
        self._draws = artifact.model.draws(artifact.config.trainer.seed)
        self._ranker = artifact.model.ranker(self._draws, rows)
        self._pair_scores = PairScorer(artifact, self._ranker, rows)
        self._top_items = TopItems(artifact, self._ranker)
        self.cold_users = ColdStart(artifact, self.users, self.items)
        self._open(store)
        self.context = context_reader(artifact)
        self._attributions = Attributor(artifact, self.cold_users, self.rows_are_independent)
        self._names = [task.name for task in self.tasks]
        self._unseen_users = artifact.unseen("user")

    @classmethod
    def load(cls, path: str | Path, store: EventStore | None = None) -> Predictor:
        """Load a model folder or run folder. `store`: of observed events; by default a new one.
        Raises DataError."""
        return cls(load_artifact(Path(path)), store)

    def warm_up(self) -> None:
        """Fill the caches that the first rankings would otherwise fill."""
        self._ranker.warm_up()
        self.users.warm_up()
        self.items.warm_up()

    @overload
    def score(
        self,
        users: Whom,
        items: Whom,
        *,
        context: Context = ...,
        events: RowEvents = ...,
        calibrate: bool = ...,
    ) -> Scores: ...
    @overload
    def score(self, users: Any, *, user: Any = ..., item: Any = ...) -> pd.DataFrame: ...
    def score(
        self,
        users: Any,
        items: Any = None,
        *,
        context: Context = None,
        events: RowEvents = None,
        calibrate: bool = True,
        **columns: Any,
    ) -> Scores | pd.DataFrame:
        """Predictions for the pairs zip(users, items), ids or cold-start users.

        `context`: values by context feature, of all pairs or a list with one mapping per pair; of
        models with `model.time_features` also `time`, seconds since 1970.
        `events`: what the users did besides what is stored, of all pairs or a list per pair.

        Of a DataFrame a DataFrame of pandas with its rows (and index): a column per task,
        `<task>_calibrated`, `unseen_user` and `unseen_item`. `user`, `item`: its columns of ids,
        by default those that `prepare` read. Others are read as by `recsys-moe predict`.

        `calibrate=False` leaves `calibrated` empty, which is faster. Raises DataError on unequal
        lengths, for an invalid cold-start user and for a missing column.
        """
        if items is None:
            return scored_frame(self, users, calibrate, context=context, **columns)
        if columns:
            raise TypeError(f"{', '.join(columns)}: of a DataFrame only, without items")
        request, cold = self._pairs(users, items, context, events)
        return self._pair_scores.scores(request, calibrate, cold)

    def unused(self, cold: ColdItem, *, entity: Entity = "user") -> Unused:
        """The parts of a cold-start user (or `item`) that the model ignores. Raises DataError."""
        return self.resolve([cold], entity=entity).unused[0]

    def resolve(self, whom: Whom, *, entity: Entity = "user") -> Resolved:
        """Ids and cold-start users looked up once; pass the result wherever ids may be passed.

        Raises DataError for an invalid id or cold-start user.
        """
        return self.cold_users.resolve(entity, whom)

    def recommend(
        self,
        users: Whom = (),
        k: int = 10,
        *,
        history: Sequence[RawId] | Mapping[RawId, float | None] = (),
        features: Mapping[str, Any] | None = None,
        context: Context = None,
        events: RowEvents = None,
        exclude_seen: bool = False,
        candidates: Ids | Resolved | None = None,
        where: Sequence[str] = (),
        score: str | None = None,
        retrieve: int | None = None,
    ) -> list[list[Recommendation]]:
        """The k best items for each user, best first; fewer where fewer are left.

        `candidates`: rank only these item ids; unknown ids are ignored. `where`: conditions on
        the item columns, all of which must hold (see `item_filters`). `exclude_seen`: omit the
        items of the user's training rows, history and events. `score`: one of `score_names`; the
        default is the first binary task, or the first task. Ties go to the lower item index.
        Filters do not change scores. `history`, `features`: of one cold-start user, whose list
        comes last (`users` may contain more, see `ColdUser`). `context`: values by context feature,
        of all users or a list with one mapping per user. `events`: what users did besides what is
        stored, likewise; without users, of one new user. `retrieve`: score only so many items of a
        user, the largest inner products of the bilinear term (see `retrieval`).

        Raises ConfigError for an unknown score, invalid condition or impossible `retrieve`,
        DataError for infinite scores, ValueError for k < 1, TypeError for an id without a list.
        """
        cold = plain_history(history)
        if cold or plain(features) is not None:
            users = [*plain_list(users), ColdUser({} if features is None else features, cold)]
        if events and not isinstance(users, Resolved) and not plain_list(users):
            users = [ColdUser()]
        k = whole_number("k", k, 1)
        formula = formula_of(plain(score), self.tasks)
        how: dict[str, Any] = {"formula": formula, "exclude_seen": exclude_seen}
        how["retrieve"] = self._top_items.retrievers.checked(retrieve, k, formula)
        item_N = self._allowed(candidates, where)
        whom = self.resolve(users)
        top_items = self._top_items.with_cold_users(self.cold_users.encoder(whom.parts))
        asked = self._asked(whom, context, events, items=exclude_seen)
        return list(top_items.best(asked, item_N, k, **how))

    def recommend_frame(self, users: Whom = (), k: int = 10, **options: Any) -> pd.DataFrame:
        """The lists of `recommend`, with its options, as a DataFrame of pandas.

        A row for each user and rank, with the columns that `recsys-moe recommend --users` writes;
        `user` is None for a cold-start user.
        """
        whom = plain_list(users)
        lists = self.recommend(whom, k, **options)
        whom += [ColdUser()] * (len(lists) - len(whom))  # of `history` and `features`
        return ranked_frame(self, whom, lists, options.get("score"))

    @property
    def score_names(self) -> dict[str, tuple[str, ...]]:
        """Values of `score` -> the tasks whose predictions are multiplied.

        `watch*rating` is the expected rating if an item without an interaction counts as 0.
        """
        return score_names(self.tasks)

    def similar(self, item: str | int, k: int = 10) -> list[Recommendation]:
        """The k other items whose embeddings have the largest cosine with that of `item`.

        `scores` holds `cosine`, in [-1, 1]. Raises DataError for an item the model does not know,
        ValueError for k < 1.
        """
        item, k = plain(item), whole_number("k", k, 1)
        if self.artifact.unseen("item")[index := self.items.index([item])[0]]:
            raise DataError(
                f"item {item} was not seen in training and has no embedding; pass a known item"
            )
        return self._top_items.similar(int(index), k)

    def explain(
        self, users: Whom, items: Whom, *, context: Context = None, events: RowEvents = None
    ) -> list[dict[str, list[ExpertShare]]]:
        """Expert attribution: per pair and task the selected experts, largest contribution first.

        Contributions need not sum to the logit, because towers are not linear. Raises DataError
        on unequal lengths.
        """
        return self._pair_scores.expert_shares(*self._pairs(users, items, context, events))

    def attributions(
        self,
        users: Whom,
        items: Whom,
        most: int = 5,
        *,
        context: Context = None,
        events: RowEvents = None,
    ) -> list[dict[str, list[Attribution]]]:
        """Feature attribution: per pair and task, the largest contribution first.

        Leaves out each feature, each item of the user's history, the whole histories and the ids
        in turn (see `Attribution`); at most `most` features and `most` items of the history.
        Raises ConfigError with `no_attributions`, DataError on unequal lengths.
        """
        request, cold = self._pairs(users, items, context, events)
        most, rows = whole_number("most", most, 0), range(request.rows)
        pairs = (request.take(slice(row, row + 1)) for row in rows)
        per_pair = (self._attributions.of_pair(pair, cold, most) for pair in pairs)
        return [dict(zip(self._names, tasks, strict=True)) for tasks in per_pair]

    @property
    def no_attributions(self) -> str | None:
        """Why this model has no `attributions`; None if it has them."""
        return self._attributions.none_because

    def positives(self, user: str | int) -> Tensor:
        """Indices of the items with a positive training row of the user, most popular first."""
        seen = self.seen(int(self.users.index([user])[0]))
        return seen[self.popularity[seen].sort(descending=True, stable=True).indices]

    def are_unseen_users(self, users: Whom) -> list[bool]:
        """Which are unknown? Unknown users are scored with the OOV embedding."""
        index_N = self.resolve(users).index_N
        return ((index_N < 0) | self._unseen_users[index_N.clamp(min=0)]).tolist()

    def _allowed(self, candidates: Ids | Resolved | None, where: Sequence[str]) -> Tensor:
        """Indices of the items to rank, ascending."""
        if candidates is not None and not isinstance(candidates, Resolved):
            candidates = Resolved(self.items.index(candidates)[0])
        named = None if candidates is None else candidates.index_N
        return allowed_items(self.artifact.items, plain_list(where, "conditions"), named)

    def _asked(
        self, users: Resolved, context: Context, events: RowEvents, *, items: bool = False
    ) -> Request:
        """A request of these users about no item yet; `items`: with the items of their events."""
        values, _, time_B = self.context.read_rows(context, len(users))
        before = self._past(users, events, time_B, items=items)
        return of_users(users.index_N)._replace(context=values, **before)

    def _pairs(
        self, users: Whom, items: Whom, context: Context = None, events: RowEvents = None
    ) -> tuple[Request, ColdStartVectors | None]:
        """Indices of both, ~i of cold-start user or item i, and the encoder of these."""
        user, item = self.resolve(users), self.resolve(items, entity="item")
        if len(user) != len(item):
            raise DataError(
                f"users and items must have the same length, got {len(user)} and {len(item)}"
            )
        request = self._asked(user, context, events)
        known_N = item.index_N.where(item.index_N >= 0, self.items.feature.size)
        request = request.with_items(known_N)._replace(item=item.index_N)
        return request, self.cold_users.encoder(user.parts, item.parts)
