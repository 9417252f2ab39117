"""The best of a list, with a rule for equal values."""

from __future__ import annotations

import torch
from torch import Tensor

from recsys_moe.errors import DataError


def largest(values_N: Tensor, k: int) -> Tensor:
    """Places of the k largest values, largest first; among equals the lower place wins.

    Raises DataError when a value among them is not finite: NaN would come first.
    """
    if k < len(values_N):
        least = values_N.topk(k).values[-1]
        place_N = (~(values_N < least)).nonzero()[:, 0]
    else:
        place_N = torch.arange(len(values_N))
    best_K = values_N[place_N].sort(descending=True, stable=True)
    if not best_K.values[:1].isfinite().all():
        raise DataError("the scores of the model are not finite; train again with a lower optim.lr")
    return place_N[best_K.indices[:k]]
