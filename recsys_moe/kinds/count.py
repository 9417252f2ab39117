"""count: whole numbers from 0 on, such as plays, predicted by their mean."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from recsys_moe.kinds.base import FLOAT32_MAX, Values
from recsys_moe.kinds.log_link import LogLink, log

if TYPE_CHECKING:
    from torch import Tensor


class Count(LogLink):
    """Poisson deviance; user and item biases by a Poisson likelihood with a free dispersion.

    Deviance of a label y and a mean m: 2 (y log(y / m) - y + m) (McCullagh and Nelder 1989,
    "Generalized linear models", section 6.2). It asks for the mean alone to be right: counts may
    vary more than a Poisson law does.
    """

    name = "count"
    _rule = "a whole number of at least 0"

    def invalid(self, values_N: Values) -> Values:
        return (values_N < 0) | (values_N > FLOAT32_MAX) | (values_N.round() != values_N)

    def entropy(self, labels_N: Any) -> Any:
        """y log y, 0 for 0."""
        return labels_N * log(labels_N + (labels_N == 0))

    def at_mean(self, mean: float) -> float:
        return mean * math.log(mean)

    def row_loss(self, logits_B: Tensor, labels_B: Tensor) -> Tensor:
        return 2 * (self.entropy(labels_B) - labels_B * logits_B - labels_B + logits_B.exp())

    def disagreement(self, first_B: Tensor, second_B: Tensor) -> Tensor:
        """KL(p, q) + KL(q, p) of two Poisson laws: (m - n) (log m - log n)."""
        return (first_B.exp() - second_B.exp()) * (first_B - second_B)

    def derivatives(self, logits_N: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        mean_N = logits_N.exp()
        return labels_N - mean_N, mean_N
