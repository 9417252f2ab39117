"""What kinds with positive means share: a logarithmic link, deviances and multiplicative means.

Axes: N rows, U users and I items, both with one more for the OOV id.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from recsys_moe.kinds.base import Kind, deviation, nine_digits
from recsys_moe.kinds.judging import Constant, Figures, Judging
from recsys_moe.kinds.regression import RegressionMetrics

if TYPE_CHECKING:
    from torch import Tensor


class LogLink(Kind):
    """The logit is the logarithm of the expected label; the loss is a unit deviance.

    D2 is the share of deviance explained, 1 - deviance / deviance of the rows' mean (McFadden 1974;
    Hastie, Tibshirani and Wainwright 2015, section 3.1).
    """

    metrics: ClassVar[tuple[str, ...]] = ("d2", "deviance", "mse", "rmse", "mae")
    loss_metric = "deviance"
    headline = "d2"
    higher = ("d2", "concordance")
    has_noise = True
    needs = ("mean", "labelled", "entropy")
    likelihood = 0.5
    ranks_labels = False
    """Whether `concordance` is measured, which keeps all rows."""

    @abstractmethod
    def entropy(self, labels_N: Any) -> Any:
        """Per row, of an array or a tensor: half the part of the deviance that is the label's."""

    @abstractmethod
    def at_mean(self, mean: float) -> float:
        """`entropy` of labels that are all `mean`: the deviance of the mean is twice the gap."""

    def statistics(self, labels_N: Any) -> dict[str, Any]:
        return {"squares": labels_N * labels_N, "entropy": self.entropy(labels_N)}

    def counted(self, sums: Mapping[str, Any]) -> dict[str, float]:
        rows = sums["labelled"]
        return {
            "min": sums["min"],
            "max": sums["max"],
            "std": nine_digits(deviation(sums)),
            "entropy": nine_digits(sums["entropy"] / rows) if rows else 0.0,
        }

    def weighted(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        rows = sums["labelled"]
        return {"mean": sums["total"] / rows, "entropy": sums["entropy"] / rows}

    def constant(self, counts: Mapping[str, float]) -> Constant:
        """Of labels that are all 0, the logit of half a label."""
        mean = counts["mean"] or 0.5 / (counts["labelled"] + 1)
        gap = 2 * (counts["entropy"] - self.at_mean(mean))
        return Constant(math.log(mean), 1.0, gap if gap > 1e-6 else 1.0)

    def link(self, logits: Tensor) -> Tensor:
        return logits.exp()

    def measure(self) -> LogLinkMetrics:
        return LogLinkMetrics(self)

    def undefined(self, counts: Mapping[str, float]) -> tuple[str, ...]:
        """Equal labels have neither deviance to explain nor an order."""
        if not counts["labelled"]:
            return self.metrics
        return ("d2", "concordance") if counts.get("min") == counts.get("max") else ()

    def baselines(self, on: Judging) -> dict[str, Figures]:
        """`mean`, and `user_item_mean`, the mean times a damped factor of the item and one of the
        user."""
        from recsys_moe.kinds.averages import user_item_factors

        mean = math.exp(self.constant(on.counts).logit)
        user_U, item_I = user_item_factors(on.train, on.sizes, mean)
        constant, product = self.measure(), self.measure()
        for user_N, item_N, label_N, _ in on.rows():
            constant.update(label_N.new_full(label_N.shape, math.log(mean)), label_N)
            product.update((mean * user_U[user_N] * item_I[item_N]).log(), label_N)
        shown = [name for name in ("deviance", "concordance", "mse") if name in self.metrics]
        found = {"mean": constant.compute(), "user_item_mean": product.compute()}
        return {name: {metric: one[metric] for metric in shown} for name, one in found.items()}


def log(values_N: Any) -> Any:
    """Of a numpy array or a tensor."""
    if hasattr(values_N, "log"):
        return values_N.log()
    import numpy as np

    return np.log(values_N)


class LogLinkMetrics:
    """Deviance, D2 and the errors of the expected label, from running float64 sums.

    With `ranks_labels`, keeps 8 bytes per row for the concordance.
    """

    def __init__(self, kind: LogLink) -> None:
        self.kind, self.errors = kind, RegressionMetrics()
        self.loss_sum, self.total, self.entropy = 0.0, 0.0, 0.0
        self._columns = array("f"), array("f")

    def update(self, logits_B: Tensor, labels_B: Tensor) -> None:
        """Add a batch; rows whose label is NaN are left out."""
        mask_B = ~labels_B.isnan()
        logits_N, labels_N = logits_B[mask_B].detach(), labels_B[mask_B]
        self.loss_sum += self.kind.row_loss(logits_N, labels_N).double().sum().item()
        self.errors.update(self.kind.link(logits_N), labels_N)
        self.total += labels_N.double().sum().item()
        self.entropy += self.kind.entropy(labels_N.double()).sum().item()
        if self.kind.ranks_labels:
            for column, values_N in zip(self._columns, (logits_N, labels_N), strict=True):
                column.frombytes(values_N.float().cpu().numpy().tobytes())

    def merge(self, other: LogLinkMetrics) -> None:
        """Add the rows of `other`."""
        self.errors.merge(other.errors)
        self.loss_sum += other.loss_sum
        self.total += other.total
        self.entropy += other.entropy
        for column, more in zip(self._columns, other._columns, strict=True):
            column.extend(more)

    def compute(self) -> Figures:
        """Every metric is None when no row is labelled; D2 and concordance where labels are all
        equal."""
        found, rows = self.errors.compute(), self.errors.rows
        deviance = self.loss_sum / rows if rows else None
        found |= {"deviance": deviance, "d2": None if deviance is None else self._d2(deviance)}
        if self.kind.ranks_labels:
            found["concordance"] = self._concordance() if rows else None
        return {name: found[name] for name in (*self.kind.metrics, "rows")}

    def _d2(self, deviance: float) -> float | None:
        rows = self.errors.rows
        mean = self.total / rows
        null = 2 * (self.entropy / rows - self.kind.at_mean(mean)) if mean else 0.0
        return 1 - deviance / null if null > 1e-9 else None

    def _concordance(self) -> float | None:
        import numpy as np
        import torch

        from recsys_moe.kinds.curves import concordance

        logits, labels = (torch.from_numpy(np.asarray(column)) for column in self._columns)
        return concordance(logits, labels)
