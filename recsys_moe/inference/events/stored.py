"""The events of the model folder: the last ones of each user in the training and validation rows.

Axes: B rows, M windows, L events of a window, P events of all users, U users.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from recsys_moe.artifact.events import no_events
from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.inference.events.states import Entry, as_entry
from recsys_moe.model.request import Events


class StoredEvents:
    """Of each known user the last `length`."""

    def __init__(self, artifact: Artifact, length: int) -> None:
        stored = artifact.events or no_events(artifact.schema)
        self.users, self._items = artifact.schema.user.size, artifact.schema.item.size
        self._length, self._columns = length, stored
        nobody = stored["first"][-1:]  # the OOV id has no events
        self._first_U = torch.cat([stored["first"], nobody])
        time_P = stored["time"]
        self.newest = float(time_P.max()) if len(time_P) else -math.inf
        """When the last of all was, seconds."""

    def newest_of(self, user_N: Tensor) -> list[float]:
        """Seconds of the last event of each user; -inf of those without one."""
        time_P = self._columns["time"]
        spans = zip(self._first_U[user_N].tolist(), self._first_U[user_N + 1].tolist(), strict=True)
        return [float(time_P[end - 1]) if end > first else -math.inf for first, end in spans]

    def of(self, user: int) -> list[Entry]:
        """The last events of a known user; empty of others."""
        if user >= self.users:
            return []
        first, end = self._first_U[user : user + 2].tolist()
        part = slice(max(first, end - self._length), end)
        columns = (self._columns[name][part].tolist() for name in ("time", "item", "value"))
        return [*map(as_entry, zip(*columns, strict=True))]

    def windows(
        self, user_M: Tensor, joined: Mapping[int, Sequence[Entry]], window_B: Tensor
    ) -> Events | None:
        """What a model reads, of windows of users or as they were joined; None where all are empty.

        `window_B`: which of the M windows each row reads.
        """
        first_U, nobody = self._first_U, self.users
        user_M = user_M.clamp(max=nobody)
        end_M = first_U[user_M + 1]
        count_M = (end_M - first_U[user_M]).clamp(max=self._length)
        for place, entries in joined.items():
            count_M[place] = len(entries)
        width = int(count_M.max()) if len(count_M) else 0
        if not width:
            return None
        there_ML = torch.arange(width) < count_M[:, None]
        place_ML = (end_M - count_M)[:, None] + torch.arange(width)
        item_ML = torch.full(there_ML.shape, self._items)
        value_ML = torch.full(there_ML.shape, math.nan)
        time_ML = torch.zeros(there_ML.shape, dtype=torch.float64)
        columns = zip((time_ML, item_ML, value_ML), ("time", "item", "value"), strict=True)
        there_ML[[*joined]] = False
        for number, (column_ML, name) in enumerate(columns):
            column_ML[there_ML] = self._columns[name][place_ML[there_ML]].to(column_ML.dtype)
            for place, entries in joined.items():
                values = [entry[number] for entry in entries]
                column_ML[place, : len(values)] = torch.tensor(values, dtype=column_ML.dtype)
        return Events(item_ML, value_ML, time_ML, window_B, count_M[window_B])
