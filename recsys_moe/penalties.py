"""Training-time penalties on routing: pure functions, unweighted, means over the batch.

They are never part of a reported loss. Axes: B batch, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from recsys_moe.routers.base import Routing


def penalty(weights: Mapping[str, float], routing: Routing, k: int) -> Tensor | float:
    """Weighted sum of the penalties named in `weights` on one router's decision.

    `k`: experts the router keeps. A router without probabilities has no penalty. Returns a scalar.
    """
    if routing.probs_BE is None:
        return 0.0
    active = {name: weight for name, weight in weights.items() if weight}
    return sum(weight * PENALTIES[name](routing, k) for name, weight in active.items())


def trimmed_lasso(probs_BE: Tensor, k: int) -> Tensor:
    """Probability mass off the k largest entries, mean over rows: in [0, 1 - k/E].

    Bertsimas, Copenhaver and Mazumder 2017, as used on the dense probabilities in the MOESART
    paper (section 3.1.4). The gradient reaches every logit through the softmax, and no expert is
    evaluated for it. (B, E) -> ().
    """
    smallest_BE = probs_BE.sort(dim=-1, descending=True, stable=True).values[:, k:]
    return smallest_BE.sum(-1).mean()


def _trimmed_lasso(routing: Routing, k: int) -> Tensor:
    assert routing.probs_BE is not None
    return trimmed_lasso(routing.probs_BE, k)


PENALTIES: dict[str, Callable[[Routing, int], Tensor]] = {"trimmed_lasso": _trimmed_lasso}
"""By the name of their weight in the `penalties` section of the configuration."""
