"""duration: positive, heavy-tailed numbers, such as watch time, predicted by their mean."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from recsys_moe.kinds.base import FLOAT32_MAX, Values
from recsys_moe.kinds.log_link import LogLink, log

if TYPE_CHECKING:
    from torch import Tensor


class Duration(LogLink):
    """Gamma deviance; user and item biases by a gamma likelihood with a free shape.

    Deviance of a label y and a mean m: 2 (y / m - log(y / m) - 1) (McCullagh and Nelder 1989,
    "Generalized linear models", section 8.3): errors count in proportion to the mean. Its optimum
    is the mean whatever the law of the labels, which that of log-normal losses is not.
    """

    name = "duration"
    metrics = (*LogLink.metrics, "concordance")
    ranks_labels = True
    filler = 1.0
    _rule = "a finite number above 0"

    def invalid(self, values_N: Values) -> Values:
        return (values_N < SMALLEST) | (values_N > FLOAT32_MAX)

    def entropy(self, labels_N: Any) -> Any:
        return -log(labels_N)

    def at_mean(self, mean: float) -> float:
        return -math.log(mean)

    def row_loss(self, logits_B: Tensor, labels_B: Tensor) -> Tensor:
        gap_B = labels_B.log() - logits_B
        return 2 * (gap_B.exp() - gap_B - 1)

    def disagreement(self, first_B: Tensor, second_B: Tensor) -> Tensor:
        """Deviance of one mean from the other, both ways, halved: 2 (cosh(log m - log n) - 1)."""
        return 4 * ((first_B - second_B) / 2).sinh().square()

    def derivatives(self, logits_N: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        """Expected information, 1: that of a row with a large label would hold its bias back."""
        ratio_N = (labels_N.log() - logits_N).exp()
        return ratio_N - 1, ratio_N.new_ones(ratio_N.shape)


SMALLEST = 1e-30
"""Smaller labels are 0 in float32, as good as."""
