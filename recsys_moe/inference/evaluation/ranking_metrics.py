"""How good ranked lists are: figures per user, their means and how sure these are.

Axes: U users, K ranks of a list, N rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

SEED, RESAMPLES, LEVEL = 0, 1000, 0.95
"""Of the bootstrap: its random numbers, how often users are drawn, what an interval holds."""


def list_metrics(hit_UK: Tensor, relevant_U: Tensor) -> dict[str, Tensor]:
    """Per user and name a figure in 0..1, float64 (U,).

    `hit_UK`: is the item at this rank relevant; `relevant_U`: how many are, 1 or more, whether or
    not the list could hold them. NDCG: gain 1, discount log2(1 + rank), divided by the best that a
    list of K can have (Jarvelin and Kekalainen 2002, "Cumulated gain-based evaluation of IR
    techniques"). Recall divides by all that are relevant, also where these are more than K. MRR:
    one over the rank of the first hit, 0 without one. Hit rate: 1 where there is a hit.
    """
    rank_K = torch.arange(1, hit_UK.shape[1] + 1, dtype=torch.float64)
    gain_K = 1 / torch.log2(rank_K + 1)
    best_U = gain_K.cumsum(0)[relevant_U.clamp(max=len(rank_K)) - 1]
    return {
        "ndcg": (hit_UK * gain_K).sum(1) / best_U,
        "recall": hit_UK.sum(1).double() / relevant_U,
        "mrr": (hit_UK / rank_K).amax(1),
        "hit_rate": hit_UK.any(1).double(),
    }


class PerUser(NamedTuple):
    """A figure of each user and what it counts in the mean: 0 where the user has none. (U,)"""

    value: Tensor
    weight: Tensor

    def among(self, users_U: Tensor) -> PerUser:
        """The same without the users that are not in `users_U`, bool (U,)."""
        return PerUser(self.value, self.weight * users_U)


def means(figures: Mapping[str, PerUser]) -> dict[str, float | None]:
    """Of each figure over its users; None without any."""
    return {name: _mean(figure) for name, figure in figures.items()}


def bootstrap(
    figures: Mapping[str, PerUser], resamples: int | None = None
) -> dict[str, list[float]]:
    """How sure the means are: percentile intervals over users drawn `resamples` times (1,000).

    By name, without the figures that no user has; the same draws for all (Efron and Tibshirani
    1993, "An introduction to the bootstrap", chapter 13).
    """
    figures = {name: figure for name, figure in figures.items() if figure.weight.any()}
    if not figures:
        return {}
    weights_UM = torch.stack([figure.weight for figure in figures.values()], 1).double().numpy()
    values_UM = torch.stack([figure.value for figure in figures.values()], 1).numpy()
    present_U = weights_UM.any(1)
    weights_UM = weights_UM[present_U]
    sums_UM = np.where(weights_UM > 0, values_UM[present_U], 0.0) * weights_UM
    rng, users = np.random.default_rng(SEED), len(sums_UM)
    means_RM = np.empty((resamples or RESAMPLES, len(figures)))
    for means_M in means_RM:
        times_U = np.bincount(rng.integers(users, size=users), minlength=users).astype(float)
        with np.errstate(invalid="ignore"):  # nobody with this figure was drawn
            means_M[:] = (times_U @ sums_UM) / (times_U @ weights_UM)
    bounds_M2 = np.nanquantile(means_RM, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0).T
    return dict(zip(figures, bounds_M2.tolist(), strict=True))


def _mean(figure: PerUser) -> float | None:
    has_U = figure.weight > 0
    value_U, weight_U = figure.value[has_U], figure.weight[has_U]
    return float((value_U * weight_U).sum() / weight_U.sum()) if len(value_U) else None
