"""What a model says of users' events, from the states of its encoder after the stored ones.

A request then costs a step for each event that it brings, not the whole timeline again. Equal to
the window of the last L events within 1e-5.

Axes: M users, S slots, L events of a window, D width of a vector.
"""

from __future__ import annotations

import math
import mmap
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from recsys_moe.model.encoders.sequence import EventSequence
from recsys_moe.model.recommender import Recommender
from recsys_moe.model.request import Events, of_items

MOST_MB = 128
"""Memory for the states of users; a state that is not kept costs its user's window again."""
WINDOWS_AT_ONCE = 64


class Entry(NamedTuple):
    """An event as a model reads it."""

    time: float
    item: int
    value: float


as_entry = partial(tuple.__new__, Entry)
"""Of its fields in a tuple; faster than `Entry(*fields)`."""
TIME = itemgetter(0)
"""Of an Entry, to sort by."""


class History(NamedTuple):
    """Events to encode."""

    more: Sequence[Entry]
    """Events after those before, by time."""
    key: Hashable = None
    """Whose events are before, equal within a call; None: there are none."""
    version: int = 0
    """Another one of the same key has other events: its state is replaced."""
    before: Callable[[], Sequence[Entry]] = tuple
    """Asked for only where their state is not kept."""


class States:
    """Keeps the states that were used last, in `megabytes`. Safe to use from several threads."""

    def __init__(self, model: Recommender, megabytes: float = MOST_MB) -> None:
        assert model.encoders is not None
        self._model, self._encoder = model, model.encoders.sequence
        assert isinstance(self._encoder, EventSequence)
        self._mixers = self._encoder.prepared()
        start = self._encoder.nothing_D.detach()[None], *self._encoder.start(1)
        size = sum(one.numel() * one.element_size() for one in start)
        self.slots = max(1, int(megabytes * 2**20 / size))
        self._table = [_untouched(self.slots + 1, one[0]) for one in start]
        for table, one in zip(self._table, start, strict=True):
            table[0] = one[0]
        self._slot: OrderedDict[Hashable, tuple[int, int]] = OrderedDict()
        self._used = 0
        self._lock = threading.Lock()

    @torch.inference_mode()
    def vectors(self, histories: Sequence[History]) -> Tensor:
        """(M, D): what the encoder says after all events of each."""
        starts = range(0, len(histories), self.slots)
        with self._lock:
            parts = [self._vectors(histories[at : at + self.slots]) for at in starts]
        return torch.cat([self._table[0][:0], *parts])

    @torch.inference_mode()
    def without_keeping(self, timelines: Sequence[Sequence[Entry]]) -> Tensor:
        """(M, D): the same of events, at least one each, whose state is not kept."""
        starts = range(0, len(timelines), WINDOWS_AT_ONCE)
        parts = [timelines[start : start + WINDOWS_AT_ONCE] for start in starts]
        return torch.cat([self._read(part)[0] for part in parts])

    def _vectors(self, histories: Sequence[History]) -> Tensor:
        slots = self._slots(histories)
        rows = [row for row, one in enumerate(histories) if one.more]
        said_RD = self._further([histories[row].more for row in rows], [slots[r] for r in rows])
        if len(rows) == len(slots):
            return said_RD
        last_MD = self._table[0].index_select(0, torch.tensor(slots))
        return last_MD.index_copy_(0, torch.tensor(rows, dtype=torch.long), said_RD)

    def _further(self, more: Sequence[Sequence[Entry]], slots: Sequence[int]) -> Tensor:
        """(R, D): what is said after more events than the states in these slots have seen."""
        if not slots:
            return self._table[0][:0]
        slot_R = torch.tensor(slots)
        state = tuple(one.index_select(0, slot_R) for one in self._table[1:])
        events = windows(more, self._model.num_items)
        return self._encoder.extend(self._items(events.item), events, state, self._mixers)

    def _slots(self, histories: Sequence[History]) -> list[int]:
        """Where the states before `more` lie; those that lack are computed."""
        missing = {}
        for one in histories:
            if self._slot.get(one.key, (0, -1))[1] == one.version:
                self._slot.move_to_end(one.key)
            elif one.key is not None:
                missing[one.key] = one
        new = [*missing.values()]
        for start in range(0, len(new), WINDOWS_AT_ONCE):
            part = new[start : start + WINDOWS_AT_ONCE]
            rows = self._read([one.before() for one in part])
            slots = [self._free(one.key) for one in part]
            for table, values in zip(self._table, rows, strict=True):
                table.index_copy_(0, torch.tensor(slots), values)
            for one, slot in zip(part, slots, strict=True):
                self._slot[one.key] = slot, one.version
        return [0 if one.key is None else self._slot[one.key][0] for one in histories]

    def _free(self, key: Hashable) -> int:
        """Its own slot, or one that was never used, or that of what was not used for longest."""
        if key in self._slot:
            return self._slot.pop(key)[0]
        if self._used == self.slots:
            return self._slot.popitem(last=False)[1][0]
        self._used += 1
        return self._used

    def _read(self, timelines: Sequence[Sequence[Entry]]) -> list[Tensor]:
        """Vectors and states after some events."""
        events = windows(timelines, self._model.num_items)
        vector_MLD = self._items(events.item)
        last_MD, state = self._encoder.read(vector_MLD, events)
        return [last_MD, *state]

    def _items(self, item_ML: Tensor) -> Tensor:
        return self._model.encode_items(of_items(item_ML.flatten())).unflatten(0, item_ML.shape)


def _untouched(rows: int, like: Tensor) -> Tensor:
    """Zeros (rows, ...) that take memory only where they are written to, and give it back.

    `torch.empty` would get pages that were in use before: a few new models, and the process has
    grown by all of the table.
    """
    buffer = mmap.mmap(-1, rows * like.numel() * like.element_size())
    return torch.frombuffer(buffer, dtype=like.dtype).view(rows, *like.shape)


def windows(timelines: Sequence[Sequence[Entry]], unknown: int) -> Events:
    """A window and a row for each; `unknown`: the item of padding."""
    counts = [len(one) for one in timelines]
    padding, width = Entry(0.0, unknown, math.nan), max(counts)
    padded = chain.from_iterable((*one, *[padding] * (width - len(one))) for one in timelines)
    flat = np.fromiter(chain.from_iterable(padded), np.float64, 3 * width * len(counts))
    time_ML, item_ML, value_ML = torch.from_numpy(flat).view(-1, width, 3).unbind(-1)
    rows = torch.arange(len(counts)), torch.tensor(counts)
    return Events(item_ML.long(), value_ML.float(), time_ML, *rows)
