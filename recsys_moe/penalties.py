"""Training-time penalties on routing: pure functions, unweighted, means over the batch.

They are never part of a reported loss. Axes: B batch, E experts.
"""

from __future__ import annotations

from torch import Tensor


def trimmed_lasso(probs_BE: Tensor, k: int) -> Tensor:
    """Probability mass off the k largest entries, mean over rows: in [0, 1 - k/E].

    Bertsimas, Copenhaver and Mazumder 2017, as used on the dense probabilities in the MOESART
    paper (section 3.1.4). The gradient reaches every logit through the softmax, and no expert is
    evaluated for it. (B, E) -> ().
    """
    smallest_BE = probs_BE.sort(dim=-1, descending=True, stable=True).values[:, k:]
    return smallest_BE.sum(-1).mean()
