"""Training-time penalties on routing: pure functions, unweighted, means over the batch.

They are never part of a reported loss. Axes: B batch, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from recsys_moe.errors import ConfigError, suggestion
from recsys_moe.routers.base import Routing
from recsys_moe.routers.selection import largest_k
from recsys_moe.routers.settings import PENALTY_NAMES

DISAGREEMENT = "disagreement"
"""The name of the penalty that reads the decisions of all tasks together."""


def penalty(weights: Mapping[str, float], routing: Routing, k: int) -> Tensor | float:
    """Weighted sum of the penalties named in `weights` on one router's decision.

    `k`: experts the router keeps. Returns a scalar. Raises ConfigError for a penalty that the
    router does not support. `check_names` checks the names.
    """
    total: Tensor | float = 0
    for name, weight in weights.items():
        if not weight:
            continue
        field, value = PENALTIES[name]
        needed_BE = getattr(routing, field)
        if needed_BE is None:
            raise ConfigError(_lacking(name, field.removesuffix("_BE"), weight))
        total = total + weight * value(needed_BE, routing, k)
    return total


def _lacking(name: str, field: str, weight: float) -> str:
    return (
        f"penalties.{name} must be 0 with a router without {field}, got {weight}; set it to 0 or "
        "choose another router"
    )


def check_names(weights: Mapping[str, float]) -> None:
    """Raise ConfigError for an unknown penalty."""
    for name in weights:
        if name not in PENALTY_NAMES:
            raise ConfigError(f"unknown penalty {name!r}; {suggestion(name, PENALTY_NAMES)}")


def trimmed_lasso(probs_BE: Tensor, k: int) -> Tensor:
    """Probability mass off the k largest entries, mean over rows: in [0, 1 - k/E].

    Bertsimas, Copenhaver and Mazumder 2017, as used on the dense probabilities in the MOESART
    paper (section 3.2). The gradient reaches every logit through the softmax, and no expert is
    evaluated for it. (B, E) -> ().
    """
    smallest_BE = probs_BE.sort(dim=-1, descending=True, stable=True).values[:, k:]
    return smallest_BE.sum(-1).mean()


def switch(probs_BE: Tensor, selected_BE: Tensor) -> Tensor:
    """E * sum_e f_e P_e with P_e the mean probability and f_e the share of all selections.

    `selected_BE`: bool, or how often each expert was drawn: k draws of a row share out 1, also
    where they hit an expert twice.

    Fedus et al. 2021 (https://arxiv.org/abs/2101.03961, eq. 4 to 6) for k = 1. For k > 1 the
    shares still sum to 1, so that the value is 1 at perfect balance; flaxformer lets them sum to
    k. f has no gradient. (B, E), (B, E) -> ().
    """
    picked_E = selected_BE.to(probs_BE.dtype).sum(0)
    share_E = picked_E / picked_E.sum().clamp(min=1)
    return probs_BE.shape[-1] * (share_E * probs_BE.mean(0)).sum()


def importance(weights_BE: Tensor) -> Tensor:
    """Squared coefficient of variation, over experts, of the weights summed over the batch.

    Shazeer et al. 2017 (https://arxiv.org/abs/1701.06538, eq. 6 and 7). (B, E) -> ().
    """
    return squared_variation(weights_BE.sum(0))


def smooth_load(clean_BE: Tensor, noisy_BE: Tensor, k: int) -> Tensor:
    """Squared variation of the chance to be selected, were an expert's noise drawn again.

    V-MoE (Riquelme et al. 2021, https://arxiv.org/abs/2106.05974, appendix A): the noise is
    N(0, 1 / E^2), the bar is the k-th largest noisy logit of the row. (B, E), (B, E) -> ().
    """
    bar_B1 = _largest(noisy_BE, k)[:, -1:]
    chance_BE = torch.special.ndtr((clean_BE - bar_B1) * clean_BE.shape[-1])
    return squared_variation(chance_BE.mean(0))


def noisy_load(clean_BE: Tensor, noisy_BE: Tensor, scale_BE: Tensor, k: int) -> Tensor:
    """`smooth_load` for noise of a learned size `scale_BE`, as Shazeer et al. 2017 define it.

    Appendix A, eq. 8 to 11: the bar is the k-th largest noisy logit among the *other* experts.
    Needs k < E.
    """
    top_BK = _largest(noisy_BE, k + 1)
    is_in_BE = noisy_BE > top_BK[:, k:]
    bar_BE = torch.where(is_in_BE, top_BK[:, k:], top_BK[:, k - 1 : k])
    return squared_variation(torch.special.ndtr((clean_BE - bar_BE) / scale_BE).sum(0))


def _largest(values_BE: Tensor, k: int) -> Tensor:
    """The k largest of each row, largest first; of equals the lower index gets the gradient."""
    return values_BE.sort(dim=-1, descending=True, stable=True).values[:, :k]


def z_loss(logits_BE: Tensor) -> Tensor:
    """Mean squared log-partition function, which keeps logits small.

    ST-MoE (Zoph et al. 2022, https://arxiv.org/abs/2202.08906, eq. 5). (B, E) -> ().
    """
    return logits_BE.logsumexp(-1).square().mean()


def disagreement(probs_TBE: Tensor) -> Tensor:
    """Entropy of the mean of the tasks' probabilities less their mean entropy, mean over rows.

    The generalised Jensen-Shannon divergence (Lin 1991, "Divergence measures based on the Shannon
    entropy"): 0 where all tasks are alike, log T where no two share an expert.
    (T, B, E) -> ().
    """
    return (_entropy(probs_TBE.mean(0)) - _entropy(probs_TBE).mean(0)).mean()


def _entropy(probs_XE: Tensor) -> Tensor:
    """In nats; with a finite gradient at 0."""
    return -(probs_XE * probs_XE.clamp(min=1e-12).log()).sum(-1)


def disagreement_of(routings: Sequence[Routing], weight: float) -> Tensor:
    """Of the decisions of all tasks. Raises ConfigError for a router without probabilities."""
    probs = [routing.probs_BE for routing in routings if routing.probs_BE is not None]
    if len(probs) < len(routings):
        raise ConfigError(_lacking(DISAGREEMENT, "probs", weight))
    return disagreement(torch.stack(probs))


def squared_variation(values_E: Tensor) -> Tensor:
    """Variance / mean^2 with the population variance (divided by E, as V-MoE; Shazeer: E - 1)."""
    return values_E.var(correction=0) / values_E.mean().square().clamp(min=1e-12)


def _switch(probs_BE: Tensor, routing: Routing, k: int) -> Tensor:
    if routing.counts_BE is not None:
        return switch(probs_BE, routing.counts_BE)
    # A router that keeps all experts has equal shares, so count the favourite of each row instead.
    everyone = k >= probs_BE.shape[-1]
    return switch(probs_BE, largest_k(probs_BE, 1) if everyone else routing.selected_BE)


def _load(noisy_BE: Tensor, routing: Routing, k: int) -> Tensor:
    k = k if k < noisy_BE.shape[-1] else 1
    clean_BE = noisy_BE if routing.clean_logits_BE is None else routing.clean_logits_BE
    if routing.noise_scale_BE is None or noisy_BE.shape[-1] == 1:
        return smooth_load(clean_BE, noisy_BE, k)
    return noisy_load(clean_BE, noisy_BE, routing.noise_scale_BE, k)


PENALTIES: dict[str, tuple[str, Callable[[Tensor, Routing, int], Tensor]]] = {
    "trimmed_lasso": ("probs_BE", lambda probs_BE, routing, k: trimmed_lasso(probs_BE, k)),
    "switch": ("probs_BE", _switch),
    "importance": ("weights_BE", lambda weights_BE, routing, k: importance(weights_BE)),
    "load": ("logits_BE", _load),
    "z_loss": ("logits_BE", lambda logits_BE, routing, k: z_loss(logits_BE)),
}
"""The field of Routing that a penalty cannot do without, and its value given that field, the
routing and k; by the name of its weight in the `penalties` section of the configuration."""
