"""Pairs of users and items as numbers: joined, distinct, without those that are excluded.

Axes: N pairs, M distinct ones, C context features.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from recsys_moe.inference.evaluation.ranking_wanted import Pairs
from recsys_moe.model.request import Request
from recsys_moe.schema import Schema


def relevant_pairs(
    pairs: Pairs, excluded_N: Tensor, schema: Schema
) -> tuple[Pairs, dict[str, int]]:
    """Each known item once per user; every row of an unknown item counts."""
    known_user_N = pairs.user < schema.user.size
    key_N = keys_of(Pairs(pairs.user[known_user_N], pairs.item[known_user_N]), schema)
    is_excluded_N = torch.isin(key_N, excluded_N)
    left_N = key_N[~is_excluded_N]
    is_unknown_N = left_N % (schema.item.size + 1) == schema.item.size
    kept_N = torch.cat([left_N[~is_unknown_N].unique(), left_N[is_unknown_N]]).sort().values
    return pairs_of(kept_N, schema), {
        "relevant_of_unknown_users": int((~known_user_N).sum()),
        "relevant_excluded": int(is_excluded_N.sum()),
    }


def in_contexts(
    parts: Sequence[Request], excluded_N: Tensor, schema: Schema
) -> tuple[Pairs, Tensor]:
    """As `relevant_pairs`, where a known item counts once per user and context; the contexts."""
    pairs = joined(Pairs(part.user.long(), part.item.long()) for part in parts)
    context_NC = torch.cat([part.context for part in parts if part.context is not None])
    key_N = keys_of(pairs, schema)
    kept_N = (pairs.user < schema.user.size) & ~torch.isin(key_N, excluded_N)
    key_N, context_NC = key_N[kept_N], context_NC[kept_N]
    is_unknown_N = key_N % (schema.item.size + 1) == schema.item.size
    own_N = torch.arange(1, len(key_N) + 1) * is_unknown_N  # each row of an unknown item counts
    key_M2, context_MC, _ = unique_with_context(torch.stack([key_N, own_N], 1), context_NC)
    return pairs_of(key_M2[:, 0], schema), context_MC


def unique_with_context(key_NX: Tensor, context_NC: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct rows of both, ascending, keys first: the keys (M, X), the contexts (M, C), and which
    one each row is (N,)."""
    columns = key_NX.double(), context_NC.nan_to_num(0).double(), context_NC.isnan().double()
    row_MY, place_N = torch.cat(columns, 1).unique(dim=0, return_inverse=True)
    context_MC = context_NC.new_empty(len(row_MY), context_NC.shape[1])
    context_MC[place_N] = context_NC
    return row_MY[:, : key_NX.shape[1]].long(), context_MC, place_N


def joined(parts: Iterable[Pairs]) -> Pairs:
    users, items = zip(*parts, strict=True)
    return Pairs(torch.cat(users), torch.cat(items))


def keys_of(pairs: Pairs, schema: Schema) -> Tensor:
    """One number per pair, ascending by user and then item."""
    return pairs.user * (schema.item.size + 1) + pairs.item


def pairs_of(key_N: Tensor, schema: Schema) -> Pairs:
    return Pairs(key_N // (schema.item.size + 1), key_N % (schema.item.size + 1))


def distinct(parts: Iterable[Pairs], schema: Schema) -> Tensor:
    """Keys of the pairs of known users and items, each once, ascending."""
    keys = [torch.empty(0, dtype=torch.long)]
    for pairs in parts:
        known_N = (pairs.user < schema.user.size) & (pairs.item < schema.item.size)
        keys.append(keys_of(pairs, schema)[known_N])
    return torch.cat(keys).unique()
