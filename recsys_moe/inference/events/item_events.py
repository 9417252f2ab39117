"""Age and popularity of items, moved by observed events and by those of requests."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.data.running_past import RunningPast, WithGiven
from recsys_moe.inference.events.timeline import Told
from recsys_moe.inference.events.user_events import UserEvents, Windows
from recsys_moe.inference.vocabulary import Vocabulary
from recsys_moe.model.request import Standing


class ItemEvents:
    """Follows an `EventStore`. An event that the model folder holds counts once."""

    def __init__(self, artifact: Artifact, users: Vocabulary, events: UserEvents) -> None:
        """`artifact`: its `past` has a total."""
        assert artifact.past is not None
        half_life = artifact.config.model.popularity_half_life
        self._past = RunningPast(artifact.past, artifact.schema.item.size, half_life)
        self._users, self._events = users, events
        events.store.follow(self)

    def add(self, events: Sequence[Told]) -> None:
        """Count observed events."""
        told = sorted(events, key=lambda one: one[2])
        items = self._events.items.places([item for _, item, _ in told]) if told else []
        new = (
            (item, time)
            for (user, _, time), item in zip(told, items, strict=True)
            if not self._is_stored(user, item, time)
        )
        self._past.add(new, self._events.store.max_events)

    def _is_stored(self, user: str, item: int, time: float) -> bool:
        events = self._events
        return time <= events.newest and events.is_stored(self._users.places([user])[0], item, time)

    def standing(self, windows: Windows) -> tuple[Standing, Tensor | None]:
        """With the own events of the users of a request, each in the windows of its rows alone, and
        which of these lists a row has."""
        asked, is_stored = windows.asked, self._events.is_stored
        own = self._events.own(asked)
        lists = [
            [(e.item, e.time) for e in events if not is_stored(one.user, e.item, e.time)]
            for one, events in zip(asked, own, strict=True)
        ]
        if not any(lists):
            return self._past, None
        return WithGiven.of(self._past, lists), windows.window_B
