"""Histories in text: items, or ITEM=RATING of each."""

from __future__ import annotations

from collections.abc import Sequence

from recsys_moe.inference.cold_start.features import NUMBER

RawHistory = list[str] | dict[str | int | float, float | None]


def history_of(parts: Sequence[str]) -> RawHistory:
    """A list where nothing is rated. Of an item that comes again the first counts, as in training.

    An id with "=" in it is one if no number follows.
    """
    pairs = [_rated(part) for part in parts]
    if all(rating is None for _, rating in pairs):
        return [*parts]
    first: dict[str | int | float, float | None] = {}
    for item, rating in pairs:
        first.setdefault(item, rating)
    return first


def _rated(part: str) -> tuple[str, float | None]:
    item, equals, rating = part.rpartition("=")
    if equals and item and NUMBER.fullmatch(rating):
        return item, float(rating)
    return part, None
