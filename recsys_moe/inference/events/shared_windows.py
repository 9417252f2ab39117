"""Windows that rows of one user at several times share, so that an encoder runs once for many rows.

Axes: B rows, M windows that they ask for, K shared ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import torch
from torch import Tensor

from recsys_moe.inference.events.states import TIME, Entry
from recsys_moe.inference.events.stored import StoredEvents
from recsys_moe.model.request import Events


class SharedWindows:
    """Filled in the order of M. Windows that begin at the same event of a user are one, of which
    each row reads what is before its time."""

    def __init__(self, length: int) -> None:
        """`length`: events of a window at most."""
        self._length = length
        self._user_K, self._window_M, self._place_M = list[int](), list[int](), list[int]()
        self._joined: dict[int, Sequence[Entry]] = {}

    def add_stored(self, user: int) -> None:
        """A window of all that is stored of a user."""
        self._add(user, len(self._user_K), self._length)

    def add(self, user: int, timeline: Sequence[Entry], befores: Sequence[float]) -> None:
        """A window of what is strictly before each of some times; `timeline`: all before the last
        of them, by time."""
        times, begun = [*map(TIME, timeline)], dict[int, int]()
        for before in befores:
            end = bisect_left(times, before)
            start = max(0, end - self._length)
            window = begun.setdefault(start, len(self._user_K))
            self._add(user, window, end - start)
            self._joined[window] = max(self._joined.get(window, ()), timeline[start:end], key=len)

    def _add(self, user: int, window: int, place: int) -> None:
        if window == len(self._user_K):
            self._user_K.append(user)
        self._window_M.append(window)
        self._place_M.append(place)

    def events(self, stored: StoredEvents, window_B: Tensor) -> Events | None:
        """What a model reads; None where all windows are empty. `window_B`: which of M."""
        lists = self._user_K, self._window_M, self._place_M
        user_K, window_M, place_M = (torch.tensor(one, dtype=torch.long) for one in lists)
        found = stored.windows(user_K, self._joined, window_M[window_B])
        if found is None:
            return None
        return found._replace(place=found.place.minimum(place_M[window_B]))
