"""Systematic sampling with given inclusion probabilities (Madow 1949).

https://doi.org/10.1214/aoms/1177730077. Axes: B batch, E experts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def inclusion_probabilities(logits_BE: Tensor, k: int) -> Tensor:
    """pi = min(1, c softmax(logits)) with c such that rows sum to k. (B, E) float64.

    Experts are set to 1 until the others, which share what is left of k by their softmax, all stay
    below: at most k - 1 rounds. As a softmax over the others, and not as a quotient of
    probabilities, because those may all underflow next to a sure expert.
    """
    logits_BE = logits_BE.double().nan_to_num()  # NaN reaches the weights by g, see `Routing`
    lowest = torch.finfo(logits_BE.dtype).min  # not -inf: where all are sure it would be NaN
    sure_BE = torch.zeros_like(logits_BE, dtype=torch.bool)
    inclusion_BE = torch.zeros_like(logits_BE)
    for _ in range(k):
        rest_B1 = k - sure_BE.sum(-1, keepdim=True)
        others_BE = rest_B1 * logits_BE.masked_fill(sure_BE, lowest).softmax(-1)
        inclusion_BE = others_BE.masked_fill(sure_BE, 1.0)
        sure_BE = inclusion_BE >= 1
    return inclusion_BE.clamp_(max=1)


def draw_systematic(inclusion_BE: Tensor, generator: torch.Generator) -> Tensor:
    """`sample_systematic` in a random order, the same for all rows. bool (B, E)."""
    like: dict[str, Any] = {"dtype": torch.float32, "device": inclusion_BE.device}
    order_E = torch.rand(inclusion_BE.shape[-1], generator=generator, **like)
    uniform_B = torch.rand(len(inclusion_BE), generator=generator, **like)
    return sample_systematic(inclusion_BE, uniform_B, order_E.argsort(stable=True))


def sample_systematic(inclusion_BE: Tensor, uniform_B: Tensor, order_E: Tensor) -> Tensor:
    """Draw each expert with its probability, as many as these sum to. bool (B, E).

    Experts that are not sure lie behind each other on a line in the order `order_E`, each as long
    as its probability; those are drawn on which u, u + 1, u + 2, ... fall. `uniform_B` in [0, 1).
    """
    sure_BE = inclusion_BE >= 1
    ends_BE = inclusion_BE.masked_fill(sure_BE, 0)[:, order_E].cumsum(-1)
    length_B1 = ends_BE[:, -1:]
    ends_BE = ends_BE * (length_B1.round() / length_B1.clamp(min=0.5))  # whole, also when rounded
    marks_BE = (ends_BE - uniform_B[:, None]).ceil()  # passed at the end of each expert
    drawn_BE = marks_BE.diff(dim=-1, prepend=torch.zeros_like(length_B1)) > 0
    return sure_BE | drawn_BE[:, order_E.argsort(stable=True)]
