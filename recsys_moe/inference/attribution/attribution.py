"""What one feature, history item, history or id contributes to a score, and in words."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from recsys_moe.inference.cold_start.whom import ENTITIES

Kind = Literal["feature", "item", "history", "id"]
Whose = Literal["user", "item", "context"]


@dataclass(frozen=True)
class Attribution:
    """The contribution of one feature, history item, history or id to a score."""

    kind: Kind
    """`item`: an item of the user's history; `history`: the whole history of a user, or all users
    of an item; `id`: the embedding of the id."""
    entity: Whose
    """Whose it is; `context`: that of the pair."""
    name: str | None = None
    """Name of the feature."""
    value: str | int | float | None = None
    """Category (None: unknown), number, or raw id of the item."""
    title: str | None = None
    """Title of the history item."""
    rating: float | None = None
    """Rating of the history item at the precision of the model; None without one."""
    contribution: float = math.nan
    """The task's logit minus the logit without this part; NaN until it is computed."""

    @property
    def words(self) -> str:
        """A sentence for people. Titles are shown as in the data: escape them."""
        if self.kind == "id":
            return f"this {self.entity} itself"
        because = "because of" if self.contribution >= 0 else "despite"
        if self.kind == "history":
            whole = (
                "the whole history"
                if self.entity == "user"
                else "the users who interacted with this item"
            )
            return f"{because} {whole}"
        if self.kind == "feature":
            value = "unknown category" if self.value is None else self.value
            return f"{self.name}={value:g}" if isinstance(value, float) else f"{self.name}={value}"
        conjunction = "because" if self.contribution >= 0 else "although"
        rated = "" if self.rating is None else f" (rated {self.rating:g})"
        return f"{conjunction} the user interacted with {self.title or f'item {self.value}'}{rated}"

    def as_object(self) -> dict[str, Any]:
        """For JSON, with the words."""
        return {**asdict(self), "words": self.words}


def largest(attributions: Iterable[Attribution], most: int) -> list[Attribution]:
    """The largest first; of features and of items of the history at most `most` each."""
    ranked = sorted(attributions, key=lambda one: -abs(one.contribution))
    room = {"feature": most, "item": most, "history": len(ENTITIES), "id": len(ENTITIES)}
    kept = []
    for one in ranked:
        room[one.kind] -= 1
        if room[one.kind] >= 0:
            kept.append(one)
    return kept
