"""binary: labels 0 and 1, predicted as the probability of 1."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from recsys_moe.kinds.advice import of_positives
from recsys_moe.kinds.base import Kind, Values
from recsys_moe.kinds.judging import Constant, Figures, Judging

if TYPE_CHECKING:
    from torch import Tensor


class Binary(Kind):
    """Cross-entropy of a logit; user and item biases by a Bernoulli likelihood."""

    name = "binary"
    metrics: ClassVar[tuple[str, ...]] = ("auc", "bce", "ece", "ece_calibrated")
    loss_metric = "bce"
    headline = "auc"
    higher = ("auc",)
    has_positives = calibrates = is_probability = repeats = True
    is_numeric = False
    needs = ("positive", "labelled")
    _rule = "0 or 1"
    remedy = (
        "add a column of 0 and 1, e.g. of {column} >= 4, and name that, or learn {column} as "
        "regression (numbers) or multiclass (names)"
    )

    def invalid(self, values_N: Values) -> Values:
        return (values_N != 0) & (values_N != 1)

    def statistics(self, labels_N: Any) -> dict[str, Any]:
        return {"ones": labels_N == 1}

    def counted(self, sums: Mapping[str, Any]) -> dict[str, float]:
        return {"positive": int(sums["ones"])}

    def weighted(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        return {"labelled": sums["labelled"], "positive": sums["ones"]}

    def constant(self, counts: Mapping[str, float]) -> Constant:
        """Adds half a row to each class, so that a single class has a finite logit."""
        rate = (counts["positive"] + 0.5) / (counts["labelled"] + 1)
        entropy = -rate * math.log(rate) - (1 - rate) * math.log1p(-rate)
        return Constant(math.log(rate / (1 - rate)), 1.0, entropy)

    def link(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def row_loss(self, logits_B: Tensor, labels_B: Tensor) -> Tensor:
        from torch.nn import functional

        return functional.binary_cross_entropy_with_logits(logits_B, labels_B, reduction="none")

    def disagreement(self, first_B: Tensor, second_B: Tensor) -> Tensor:
        """(KL(p, q) + KL(q, p)) / 2 of two Bernoulli laws: (p - q) (logit p - logit q) / 2."""
        return (first_B.sigmoid() - second_B.sigmoid()) * (first_B - second_B) / 2

    def derivatives(self, logits_N: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        expected_N = logits_N.sigmoid()
        return labels_N - expected_N, expected_N * (1 - expected_N)

    def measure(self) -> BinaryMetrics:
        return BinaryMetrics()

    def baselines(self, on: Judging) -> dict[str, Figures]:
        """`popularity`, an item's positives in training; `base_rate`, the share of positives."""
        from recsys_moe.kinds.averages import totals

        popularity_I = totals(((row.item, row.label) for row in on.train()), on.sizes[1])
        metrics = BinaryMetrics()
        for _, item_N, label_N, _ in on.rows():
            metrics.update(popularity_I[item_N].float(), label_N.float())
        judged = metrics.compute()
        bce = _base_rate_bce(on.counts["positive"], on.counts["labelled"], judged)
        return {"popularity": {"auc": judged["auc"]}, "base_rate": {"bce": bce}}

    def undefined(self, counts: Mapping[str, float]) -> tuple[str, ...]:
        """AUC needs both classes."""
        one_class = "positive" in counts and not 0 < counts["positive"] < counts["labelled"]
        return ("auc",) if counts["labelled"] and one_class else super().undefined(counts)

    def advice(self, label_N: Any) -> str:
        return of_positives(label_N)


def _base_rate_bce(positive: float, labelled: float, judged: Figures) -> float | None:
    """None if the training rows have one class only: the loss would be infinite."""
    rows, ones = judged["rows"] or 0, judged["positive"] or 0
    if not rows or not 0 < positive < labelled:
        return None
    parts = [(ones, positive), (rows - ones, labelled - positive)]
    return -sum(count / rows * math.log(known / labelled) for count, known in parts)


class BinaryMetrics:
    """AUC, mean binary cross-entropy (`bce`) and calibration error (`ece`, 15 equal-width bins).

    Keeps the float32 logit and label of each labelled row, because an exact AUC needs all of them:
    it is that of the logits, since from 17 on float32 has only 1 for their probability.
    In arrays that grow in place: a list of tensors would pin a small block of memory behind the
    large ones of every batch, and glibc then finds no place for the next large one.
    `calibration`, of `artifact.calibration`, may also be set when all rows are seen. The labels are
    0 and 1.
    """

    def __init__(self, calibration: Any = None) -> None:
        self.calibration = calibration
        self._columns = array("f"), array("f")
        self.loss_sum = 0.0

    def update(self, logits_B: Tensor, labels_B: Tensor) -> None:
        """Add a batch; rows whose label is NaN are left out."""
        mask_B = ~labels_B.isnan()
        self.loss_sum += self.loss(logits_B, labels_B)
        for column, values_B in zip(self._columns, (logits_B, labels_B), strict=True):
            column.frombytes(values_B[mask_B].detach().float().cpu().numpy().tobytes())

    def loss(self, logits_B: Tensor, labels_B: Tensor) -> float:
        """Sum over the labelled rows of a batch."""
        return Binary().row_losses(logits_B, labels_B).double().sum().item()

    def merge(self, other: BinaryMetrics) -> None:
        """Add the rows of `other`."""
        self.loss_sum += other.loss_sum
        for column, more in zip(self._columns, other._columns, strict=True):
            column.extend(more)

    def rows(self) -> tuple[Tensor, Tensor]:
        """Logits and labels (rows,) so far: views, to be dropped before the next `update`."""
        import numpy as np
        import torch

        logits, labels = (torch.from_numpy(np.asarray(column)) for column in self._columns)
        return logits, labels

    def compute(self) -> Figures:
        """AUC is None when only one class is present, `ece_calibrated` without a calibration,
        everything when no row is labelled."""
        from recsys_moe.kinds.curves import calibration_error, exact_auc

        logits, labels = self.rows()
        scores = logits.sigmoid()
        rows, positive = len(labels), int(labels.count_nonzero())  # a float32 counts to 2**24
        return {
            "auc": exact_auc(logits, labels) if 0 < positive < rows else None,
            "bce": self.loss_sum / rows if rows else None,
            "ece": calibration_error(scores, labels) if rows else None,
            "ece_calibrated": self._error_of_map(logits, labels) if rows else None,
            "rows": rows,
            "positive": positive,
        }

    def _error_of_map(self, logits: Tensor, labels: Tensor) -> float | None:
        """Mapped in parts, which bounds the memory."""
        import torch

        from recsys_moe.kinds.curves import ROWS_PER_PART, calibration_error

        if self.calibration is None:
            return None
        mapped = map(self.calibration.apply, logits.split(ROWS_PER_PART))
        return calibration_error(torch.cat([*mapped]), labels)
