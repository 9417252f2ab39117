"""The figures of a split's ranked lists: of all users, and of warm and cold users and items apart.

Axes: U users with a relevant item, K ranks, I items of the catalogue, N labelled rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recsys_moe.inference.evaluation.ranking_metrics import (
    PerUser,
    bootstrap,
    list_metrics,
    means,
)
from recsys_moe.inference.evaluation.ranking_rows import RankingRows
from recsys_moe.kinds.curves import auc_per_user

NONE = -1
"""Where a list has no item left."""


def titles(k: int) -> dict[str, str]:
    """What tables call the figures of lists of k items."""
    at_k = {"ndcg": "NDCG", "recall": "recall", "mrr": "MRR", "hit_rate": "hit rate"}
    others = {"gauc": "GAUC", "coverage": "coverage", "popularity": "mean popularity"}
    return {**{name: f"{title}@{k}" for name, title in at_k.items()}, **others}


def described(top_UK: Tensor, score_N: Tensor, rows: RankingRows) -> dict[str, Any]:
    """Plain numbers from the lists of `rows.users` and the scores of `rows.labelled`.

    A figure that no user has is None. Of an item segment only its items are relevant; the lists
    are those of the whole catalogue.
    """
    found = figures(top_UK, score_N, rows)
    cold_I = torch.cat([~rows.trained_item_I, torch.ones(1, dtype=torch.bool)])
    cold_U = ~rows.trained_user_U
    return {
        **_summary(found),
        "gauc_users": int((found["gauc"].weight > 0).sum()),
        "gauc_rows": int(found["gauc"].weight.sum()),
        "coverage": coverage(top_UK, rows),
        "segments": {
            "warm_users": _summary({name: one.among(~cold_U) for name, one in found.items()}),
            "cold_users": _summary({name: one.among(cold_U) for name, one in found.items()}),
            "warm_items": _summary(list_figures(top_UK, rows, ~cold_I)),
            "cold_items": _summary(list_figures(top_UK, rows, cold_I)),
        },
    }


def coverage(top_UK: Tensor, rows: RankingRows) -> float:
    """The share of the catalogue's items that are in a list.

    Catalogue coverage, Ge, Delgado-Battenfeld and Jannach 2010, "Beyond accuracy", RecSys.
    """
    return len(top_UK[top_UK != NONE].unique()) / len(rows.trained_item_I)


def figures(top_UK: Tensor, score_N: Tensor, rows: RankingRows) -> dict[str, PerUser]:
    """All that is a mean over users, by user index."""
    return {
        **list_figures(top_UK, rows),
        "gauc": gauc_figure(score_N, rows),
        "popularity": popularity_figure(top_UK, rows),
    }


def _summary(found: dict[str, PerUser]) -> dict[str, Any]:
    users = int((found["ndcg"].weight > 0).sum())
    return {"users": users, **means(found), "intervals": bootstrap(found)}


def list_figures(
    top_LK: Tensor, rows: RankingRows, among_I: Tensor | None = None
) -> dict[str, PerUser]:
    """`list_metrics` by user index; `among_I`: bool (I + 1,), which items may be relevant."""
    list_N, item_N = rows.list_of_pair, rows.relevant.item
    if among_I is not None:
        list_N, item_N = list_N[among_I[item_N]], item_N[among_I[item_N]]
    stride = len(rows.trained_item_I) + 2  # the unknown item, and none
    top_key_LK = torch.arange(len(rows.users))[:, None] * stride + top_LK + 1
    hit_LK = torch.isin(top_key_LK, list_N * stride + item_N + 1)
    relevant_L = torch.bincount(list_N, minlength=len(rows.users))
    has_L = relevant_L > 0
    metrics = list_metrics(hit_LK, relevant_L.clamp(min=1))
    return {name: _by_user(value_L, has_L, rows) for name, value_L in metrics.items()}


def ahead(top_LK: Tensor, others_LK: Tensor, rows: RankingRows) -> dict[str, list[float]]:
    """By how much lists are better than others of the same users: intervals of `bootstrap`."""
    own, other = (list_figures(lists_LK, rows) for lists_LK in (top_LK, others_LK))
    pairs = {name: (one, other[name]) for name, one in own.items()}
    return bootstrap({n: PerUser(a.value - b.value, a.weight) for n, (a, b) in pairs.items()})


def gauc_figure(score_N: Tensor, rows: RankingRows) -> PerUser:
    """AUC of each user's labelled rows, weighed by their number.

    GAUC as in Zhu et al. 2017, "Optimized cost per click in Taobao display advertising", KDD.
    Users with one class have no AUC and take no part.
    """
    asked, users = rows.labelled, len(rows.trained_user_U)
    auc_U = auc_per_user(asked.user, score_N, asked.label, users)
    weight_U = torch.bincount(asked.user, minlength=users) * ~auc_U.isnan()
    return PerUser(auc_U, weight_U.double())


def popularity_figure(top_UK: Tensor, rows: RankingRows) -> PerUser:
    """Mean popularity of what each user is recommended.

    ARP of Yin et al. 2012, "Challenging the long tail recommendation", VLDB, as a share of the
    users of the training rows.
    """
    is_item_UK = top_UK != NONE
    sum_U = (rows.popularity(top_UK.clamp(min=0)) * is_item_UK).sum(1)
    items_U = is_item_UK.sum(1)
    return _by_user(sum_U / items_U.clamp(min=1), items_U > 0, rows)


def _by_user(value_L: Tensor, has_L: Tensor, rows: RankingRows) -> PerUser:
    """From the order of the lists to places by user index: the mean over the lists of a user.

    Users count the same or, where each relevant row has a list of its own, as often as lists do.
    """
    empty = torch.zeros(len(rows.trained_user_U), dtype=torch.float64)
    lists_U = empty.index_add(0, rows.users, has_L.double())
    sum_U = empty.index_add(0, rows.users, value_L.double() * has_L)
    weight_U = lists_U if rows.successive is not None else (lists_U > 0).double()
    return PerUser(sum_U / lists_U.clamp(min=1), weight_U)
