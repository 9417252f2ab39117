"""The part of a Predictor that learns what users do while it serves."""

from __future__ import annotations

from collections.abc import Sequence

from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.errors import DataError
from recsys_moe.inference.cold_start.encode import ColdStart, Resolved
from recsys_moe.inference.events.observed import GivenEvent
from recsys_moe.inference.events.reader import NO_EVENTS
from recsys_moe.inference.events.store import EventStore, Observed
from recsys_moe.inference.events.user_events import RowEvents, UserEvents
from recsys_moe.inference.vocabulary import Vocabulary
from recsys_moe.model.request import Events


class LiveEvents:
    """Observed events, of models that read events (`model.sequence`)."""

    artifact: Artifact
    users: Vocabulary
    items: Vocabulary
    cold_users: ColdStart
    store: EventStore | None
    """Of observed events; None for a model that reads none. Another Predictor may take it over."""
    _user_events: UserEvents | None

    def _open(self, store: EventStore | None) -> None:
        reader = self.cold_users.events
        self.store, self._user_events = None, None
        if reader is not None:
            length = self.artifact.config.model.sequence_length
            self.store = EventStore(length) if store is None else store
            parts = self.artifact, self.users, self.items
            self._user_events = UserEvents(*parts, reader=reader, store=self.store)

    def observe(self, events: Sequence[GivenEvent]) -> Observed:
        """Store what users did: the next `score` and `recommend` of them see it.

        Each event names its user. Kept in memory, bounded, each once: see `EventStore`. Raises
        DataError for an invalid event, and then stores none, and for a model that reads no events.
        """
        reader = self.cold_users.events
        if reader is None or self._user_events is None:
            raise DataError(NO_EVENTS)
        return self._user_events.observe(reader.read(events, of_users=True))

    def _events(self, users: Resolved, given: RowEvents) -> Events | None:
        """What the model reads of the users of the rows. Raises DataError."""
        if self._user_events is not None:
            return self._user_events.events(users.index_N, users.identities, given)
        if given is not None and len(given):
            raise DataError(NO_EVENTS)
        return None
