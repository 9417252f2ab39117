"""Events of callers as a model reads them: checked, with standardised ratings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from recsys_moe.data.histories import rating_scale
from recsys_moe.errors import DataError
from recsys_moe.inference.events.observed import (
    Event,
    GivenEvent,
    ReadEvents,
    read_events,
    read_plain,
)
from recsys_moe.inference.plain import shown
from recsys_moe.kinds import rating_task
from recsys_moe.schema import Schema

NO_EVENTS = (
    "the model reads no events (model.sequence=none); omit the events, or train with "
    "model.sequence=lru"
)


class EventReader:
    """Checks events by the rating task of a model."""

    def __init__(self, schema: Schema) -> None:
        number = rating_task(schema.tasks)
        self._rated = None if number is None else schema.tasks[number]
        self._mean, self._std = rating_scale(schema)
        counts = {} if self._rated is None else schema.counts("train", self._rated.name)
        self._accepted = math.inf, -math.inf
        if (rated := self._rated) is not None:
            low, high = rated.low, rated.high
            self._accepted = -math.inf if low is None else low, math.inf if high is None else high
        self._range = counts.get("min", -math.inf), counts.get("max", math.inf)

    def read(
        self, given: Iterable[GivenEvent], *, of_users: bool, name: str = "events"
    ) -> list[Event]:
        """See `read_events`. Raises DataError for a rating outside the range of the task, too."""
        found = None if of_users else given if isinstance(given, ReadEvents) else read_plain(given)
        events = read_events(given, of_users=of_users, name=name) if found is None else found
        low, high = self._accepted
        if all(one.value is None or low <= one.value <= high for one in events):
            return events
        for row, one in enumerate(events):
            try:
                self.check(one)
            except DataError as error:
                raise DataError(f"{name}[{row}]: {error}") from None
        return events

    def standardised(self, values: Sequence[float]) -> list[float]:
        """Ratings in standard deviations of training; NaN of a missing one.

        Beyond the training labels one counts as the nearest of them: what the model never saw
        would move its scores anywhere.
        """
        if self._rated is None:
            return [math.nan] * len(values)
        low, high = self._range
        inside = np.minimum(np.maximum(np.asarray(values, np.float64), low), high)
        found: list[float] = ((inside - self._mean) / self._std).tolist()
        return found

    def check(self, event: Event) -> None:
        """Raise DataError for a rating outside the range of the task."""
        if (value := event.value) is None:
            return
        if self._rated is None:
            raise DataError(f"the model has no rating task, got value {value:g}; omit the value")
        low, high = self._accepted
        if not low <= value <= high:
            bounds = f"must be in {low:g}..{high:g}, got {shown(value)}"
            raise DataError(f"value is the {self._rated.name} and {bounds}")
