"""The part of a Predictor that learns what users do while it serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.errors import DataError
from recsys_moe.inference.cold_start.encode import ColdStart
from recsys_moe.inference.cold_start.whom import Resolved
from recsys_moe.inference.events.item_events import ItemEvents
from recsys_moe.inference.events.observed import GivenEvent
from recsys_moe.inference.events.reader import NO_EVENTS
from recsys_moe.inference.events.states import States
from recsys_moe.inference.events.store import EventStore, Observed
from recsys_moe.inference.events.user_events import Identity, RowEvents, UserEvents
from recsys_moe.inference.events.user_vectors import Said, UserVectors
from recsys_moe.inference.vocabulary import Vocabulary
from recsys_moe.model.request import Events, Moment

MOST_ROWS = 1024
"""Of a request that is answered by the states of its users; of more all timelines are read."""


class LiveEvents:
    """Observed events, of models that read events (`model.sequence`)."""

    artifact: Artifact
    users: Vocabulary
    items: Vocabulary
    cold_users: ColdStart
    store: EventStore | None
    """Of observed events; None for a model that reads none. Another Predictor may take it over."""
    _user_events: UserEvents | None
    _vectors: UserVectors | None
    _item_events: ItemEvents | None

    def _open(self, store: EventStore | None) -> None:
        reader = self.cold_users.events
        self.store, self._user_events = None, None
        self._vectors, self._item_events = None, None
        if reader is not None:
            length = self.artifact.config.model.sequence_length
            self.store = EventStore(length) if store is None else store
            parts = self.artifact, self.users, self.items
            self._user_events = UserEvents(*parts, reader=reader, store=self.store)
            if self.artifact.config.model.sequence != "none":
                self._vectors = UserVectors(self._user_events, States(self.artifact.model))
            if self.artifact.past is not None and self.artifact.past.total is not None:
                self._item_events = ItemEvents(self.artifact, self.users, self._user_events)

    def observe(self, events: Sequence[GivenEvent]) -> Observed:
        """Store what users did: the next `score` and `recommend` of them see it.

        Each event names its user. Kept in memory, bounded, each once: see `EventStore`. Raises
        DataError for an invalid event, and then stores none, and for a model that reads no events.
        """
        reader = self.cold_users.events
        if reader is None or self._user_events is None:
            raise DataError(NO_EVENTS)
        return self._user_events.observe(reader.read(events, of_users=True))

    def observed(self, raw_id: Mapping[int, Identity]) -> dict[int, Identity]:
        """Of raw ids by row, those with an observed event: others need no window of their own."""
        if self.store is None or not len(self.store):
            return {}
        return {row: one for row, one in raw_id.items() if self.store.of(str(one)).time}

    def _past(
        self, users: Resolved, given: RowEvents, time_B: Tensor | None, *, items: bool = False
    ) -> dict[str, Any]:
        """Fields of a Request: what the users of the rows did, or what the model says of that, and
        when they ask.

        `items`: the events themselves are wanted, too. Raises DataError.
        """
        if self._user_events is None:
            if given is not None and len(given):
                raise DataError(NO_EVENTS)
            return {"moment": self._moment(time_B, len(users))}
        windows = self._user_events.asked(users.index_N, users.identities, given, time_B=time_B)
        said = events = None
        if len(users) <= MOST_ROWS and self._vectors is not None:
            said = self._vectors.vectors(windows)
        if items or said is None:
            events = self._user_events.events(windows)
        moment = self._moment(time_B, len(users), events, said)
        if moment is not None and time_B is not None and self._item_events is not None:
            standing, given_B = self._item_events.standing(windows)
            moment = moment._replace(items=standing, given=given_B)
        vectors = None if said is None else said.vector_BD
        return {"events": events, "event_vectors": vectors, "moment": moment}

    def _moment(
        self,
        time_B: Tensor | None,
        rows: int,
        events: Events | None = None,
        said: Said | None = None,
    ) -> Moment | None:
        """When the rows ask, for a model that reads it."""
        if not self.artifact.config.model.chosen_times:
            return None
        if time_B is None:
            time_B = torch.full((rows,), torch.nan, dtype=torch.float64)
        if said is None:
            return Moment.of(time_B, events, self.artifact.past)
        return Moment.after(time_B, said.last_B, said.count_B, self.artifact.past)
