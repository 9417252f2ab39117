"""Users and items as callers name them: ids, cold-start users and items, or looked up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from torch import Tensor

from recsys_moe.inference.cold_start.features import Unknown
from recsys_moe.inference.cold_start.model import Parts
from recsys_moe.inference.events.observed import GivenEvent
from recsys_moe.inference.events.user_events import Identity
from recsys_moe.inference.plain import plain, plain_list
from recsys_moe.inference.vocabulary import Ids

RawId: TypeAlias = str | int | float
Entity = Literal["user", "item"]
ENTITIES: tuple[Entity, Entity] = ("user", "item")


@dataclass(frozen=True)
class ColdItem:
    """An item that is not in the training data."""

    features: Mapping[str, Any] = field(default_factory=dict)
    """By name: text or a whole number, a list of them, or a finite number; None if missing."""


@dataclass(frozen=True)
class ColdUser(ColdItem):
    """A user that is not in the training data. Without a history it is accepted for an item."""

    history: Sequence[RawId] | Mapping[RawId, float | None] = ()
    """Raw ids of the items the user interacted with, or raw id -> rating (None: not rated)."""
    events: Sequence[GivenEvent] = ()
    """What the user did, for models that read events in their order."""


@dataclass(frozen=True)
class Unused:
    """The parts of a cold-start user or item that the model ignores."""

    categories: Unknown = field(default_factory=dict)
    """Unknown categories by feature."""
    items: list[RawId] = field(default_factory=list)
    """Unknown items of the history."""
    repeated: list[RawId] = field(default_factory=list)
    """Repeated items of the history, each once; the first occurrence counts."""

    def __bool__(self) -> bool:
        return bool(self.categories or self.items or self.repeated)


@dataclass(frozen=True)
class Resolved:
    """Users or items, each looked up or read once. May be passed wherever ids may be."""

    index_N: Tensor
    """(N,) int64: of a known id, `size` of an unknown one, ~i of cold-start user i."""
    parts: Sequence[Parts] = ()
    """The entries that make up the vector of each cold-start user or item."""
    unused: Sequence[Unused] = ()
    """What the model ignores of each."""
    identities: Mapping[int, Identity] = field(default_factory=dict)
    """By row, whose events those without an index have, for models that read events."""

    def __len__(self) -> int:
        return len(self.index_N)

    def split(self, rows: int) -> list[Resolved]:
        """Parts of so many rows, of ids alone."""
        parts = []
        for start in range(0, len(self), rows):
            those = range(start, start + rows)
            known = {row - start: one for row, one in self.identities.items() if row in those}
            parts.append(Resolved(self.index_N[start : start + rows], identities=known))
        return parts

    def repeated(self, times: int) -> Resolved:
        """Of one user or item: the same in so many rows."""
        same = {row: one for one in self.identities.values() for row in range(times)}
        return replace(self, index_N=self.index_N.expand(times), identities=same)


Whom: TypeAlias = Ids | Sequence[RawId | ColdItem] | Resolved
"""Raw ids, cold-start users and cold-start items."""


def plain_history(history: Any) -> list[Any] | dict[Any, Any]:
    """Items, or ratings by item, in plain Python; empty for what is missing."""
    found = plain(history)
    if found is None:
        return []
    return found if isinstance(found, dict) else plain_list(found, "items")
