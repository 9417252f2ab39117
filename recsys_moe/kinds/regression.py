"""regression: a number, such as a rating, predicted by its mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from recsys_moe.kinds.advice import of_counts, of_numbers
from recsys_moe.kinds.base import FLOAT32_MAX, Kind, Values, deviation, nine_digits
from recsys_moe.kinds.judging import Constant, Figures, Judging, Metrics

if TYPE_CHECKING:
    from torch import Tensor


class Regression(Kind):
    """Squared error; user and item biases by a normal likelihood."""

    name = "regression"
    metrics: ClassVar[tuple[str, ...]] = ("mse", "rmse", "mae")
    loss_metric = headline = "mse"
    is_rating = has_noise = repeats = True
    likelihood = 0.5
    needs = ("mean",)
    _rule = "a finite number"

    def invalid(self, values_N: Values) -> Values:
        return abs(values_N) > FLOAT32_MAX

    def statistics(self, labels_N: Any) -> dict[str, Any]:
        return {"squares": labels_N * labels_N}

    def counted(self, sums: Mapping[str, Any]) -> dict[str, float]:
        return {"min": sums["min"], "max": sums["max"], "std": nine_digits(deviation(sums))}

    def weighted(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        return {"mean": sums["total"] / sums["labelled"], "std": deviation(sums)}

    def constant(self, counts: Mapping[str, float]) -> Constant:
        scale = counts["std"] or 1.0
        return Constant(counts["mean"], scale, scale**2)

    def link(self, logits: Tensor) -> Tensor:
        return logits

    def row_loss(self, logits_B: Tensor, labels_B: Tensor) -> Tensor:
        return (logits_B - labels_B).square()

    def disagreement(self, first_B: Tensor, second_B: Tensor) -> Tensor:
        return (first_B - second_B).square()

    def derivatives(self, logits_N: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        return labels_N - logits_N, logits_N.new_ones(logits_N.shape)

    def measure(self) -> Metrics:
        return RegressionMetrics()

    def baselines(self, on: Judging) -> dict[str, Figures]:
        """`mean`, and `user_item_mean`, the mean plus what the item and then the user deviate from
        it on damped average (as in Koren, Bell and Volinsky 2009, "Matrix factorization techniques
        for recommender systems", with fixed damping)."""
        from recsys_moe.kinds.averages import user_item_means

        mean = on.counts["mean"]
        user_U, item_I = user_item_means(on.train, on.sizes, mean)
        constant, sums = RegressionMetrics(), RegressionMetrics()
        for user_N, item_N, label_N, _ in on.rows():
            constant.update(label_N.new_full(label_N.shape, mean), label_N)
            sums.update(mean + user_U[user_N] + item_I[item_N], label_N)
        judged = {"mean": constant, "user_item_mean": sums}
        return {name: {"mse": metrics.compute()["mse"]} for name, metrics in judged.items()}

    def advice(self, label_N: Any) -> str:
        return of_numbers(label_N)

    def advice_behind(self, counts: Mapping[str, float]) -> str:
        return of_counts(counts)


class RegressionMetrics:
    """MSE, RMSE and MAE over labelled rows, from running float64 sums."""

    def __init__(self) -> None:
        self.squared, self.absolute, self.rows = 0.0, 0.0, 0

    def update(self, logits_B: Tensor, labels_B: Tensor) -> None:
        """Add a batch; rows whose label is NaN are left out."""
        mask_B = ~labels_B.isnan()
        errors = (logits_B[mask_B] - labels_B[mask_B]).double()
        self.squared += errors.square().sum().item()
        self.absolute += errors.abs().sum().item()
        self.rows += len(errors)

    def merge(self, other: RegressionMetrics) -> None:
        """Add the rows of `other`."""
        self.squared += other.squared
        self.absolute += other.absolute
        self.rows += other.rows

    def compute(self) -> Figures:
        """Every metric is None when no row is labelled."""
        mse = self.squared / self.rows if self.rows else None
        return {
            "mse": mse,
            "rmse": None if mse is None else math.sqrt(mse),
            "mae": self.absolute / self.rows if self.rows else None,
            "rows": self.rows,
        }
