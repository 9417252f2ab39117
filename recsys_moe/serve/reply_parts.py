"""Parts of replies, from what the predictor says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from recsys_moe.inference.cold_start.whom import Entity, Resolved, Unused
from recsys_moe.inference.context import Contexts
from recsys_moe.inference.predictor import Attribution, Predictor, Recommendation
from recsys_moe.inference.ranking.item_values import item_values
from recsys_moe.model.expert_shares import ExpertShare
from recsys_moe.serve.replies import AttributionReply, Item, PairUnused, RankedItem, Share
from recsys_moe.serve.request_types import exact


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


def plain_columns(columns: dict[str, Tensor]) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in columns.items()}


def items_of(predictor: Predictor, index_K: Tensor, columns: Sequence[str] = ()) -> list[Item]:
    """Items by their indices. Raises ConfigError for an unknown column."""
    table = predictor.artifact.items
    named = ["item", *{"title"}.intersection(table.column_names)]
    rows = item_values(table, index_K, named)
    return [
        Item(
            item=exact(row["item"]),
            title=None if row.get("title") is None else str(row["title"]),
            columns=values,
        )
        for row, values in zip(rows, item_values(table, index_K, columns), strict=True)
    ]


def ranked_items(
    predictor: Predictor, entries: list[Recommendation], columns: Sequence[str]
) -> list[RankedItem]:
    index_K = torch.tensor([entry.index for entry in entries], dtype=torch.long)
    rows = item_values(predictor.artifact.items, index_K, columns)
    return [
        RankedItem(**vars(entry), columns=row) for entry, row in zip(entries, rows, strict=True)
    ]


def attributions_of(found: Sequence[Attribution]) -> list[AttributionReply]:
    return [AttributionReply(**one.as_object()) for one in found]


def shares_of(experts: list[ExpertShare]) -> list[Share]:
    total = sum(abs(expert.contribution) for expert in experts) or 1.0
    return [Share(**vars(expert), share=abs(expert.contribution) / total) for expert in experts]
