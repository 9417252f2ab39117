"""What the model could not use of new users, new items and contexts, for replies."""

from __future__ import annotations

from dataclasses import replace

from recsys_moe.inference.cold_start.whom import Entity, Resolved, Unused
from recsys_moe.inference.context import Contexts
from recsys_moe.serve.replies import PairUnused


def unused_by_row(resolved: Resolved) -> dict[int, Unused]:
    """Of each cold-start user or item, by its row, what the model could not use."""
    if not resolved.unused:
        return {}
    index = resolved.index_N.tolist()
    return {row: resolved.unused[~one] for row, one in enumerate(index) if one < 0}


def unused_of_pairs(resolved: Resolved, entity: Entity) -> list[PairUnused]:
    """The same, without those that the model used completely."""
    return [
        PairUnused(row=row, entity=entity, **vars(unused))
        for row, unused in unused_by_row(resolved).items()
        if unused
    ]


def unused_of_contexts(context: Contexts) -> list[PairUnused]:
    """Rows with unknown categories."""
    return [
        PairUnused(row=row, entity="context", categories=categories, items=[])
        for row, categories in context.unknown.items()
    ]


def with_contexts(unused: dict[int, Unused], context: Contexts) -> dict[int, Unused]:
    """`unused` with the unknown categories of the context of each row."""
    for row, categories in context.unknown.items():
        one = unused.get(row, Unused())
        unused[row] = replace(one, categories={**one.categories, **categories})
    return unused
