"""multiclass: one of several classes, such as a mood or a kind of action, by name."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from recsys_moe.kinds.base import Kind, Values
from recsys_moe.kinds.judging import Constant, Figures, Judging
from recsys_moe.kinds.levels import level_counts, levels_in, shares_of

if TYPE_CHECKING:
    from torch import Tensor


class Multiclass(Kind):
    """Softmax over classes, with one logit each; labels are the numbers of the classes.

    User and item biases stay 0; the logits start at the shares of the classes in training. A class
    is no place on a scale: items are not ranked by it. Axes: C classes.
    """

    name = "multiclass"
    metrics = ("macro_auc", "accuracy", "log_loss")
    loss_metric = "log_loss"
    headline = "accuracy"
    higher = ("macro_auc", "accuracy")
    reads_text = has_levels = True
    is_numeric = ranks = False
    _rule = "the name of a class"

    @property
    def outputs(self) -> int:
        return len(self.classes)

    def columns(self, task: str) -> list[str]:
        return [f"{task}_{name}" for name in self.classes]

    def invalid(self, values_N: Values) -> Values:
        most = len(self.classes) or MOST_CLASSES
        return ~((values_N >= 0) & (values_N < most) & (values_N.round() == values_N))

    def statistics(self, labels_N: Any) -> dict[str, Any]:
        return level_counts(labels_N)

    def counted(self, sums: Mapping[str, Any]) -> dict[str, float]:
        return {key: int(value) for key, value in levels_in(sums).items()}

    def weighted(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        return levels_in(sums)

    def levels_of(
        self, splits: Mapping[str, Mapping[str, float]]
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The numbers of the classes, and their shares of training."""
        levels = tuple(map(float, range(len(self.classes))))
        return levels, shares_of(levels, splits["train"])

    def constant(self, counts: Mapping[str, float]) -> Constant:
        return self.constants(counts)[0]

    def constants(self, counts: Mapping[str, float]) -> list[Constant]:
        loss = -sum(share * math.log(share) for share in self.shares) or 1.0
        return [Constant(math.log(share), 1.0, loss) for share in self.shares]

    def link(self, logits: Tensor) -> Tensor:
        """Probabilities, of the shape of the logits (..., C)."""
        return logits.softmax(-1)

    def row_loss(self, logits_BC: Tensor, labels_B: Tensor) -> Tensor:
        return -logits_BC.log_softmax(-1).gather(-1, labels_B.long()[..., None])[..., 0]

    def disagreement(self, first_BC: Tensor, second_BC: Tensor) -> Tensor:
        """(KL(p, q) + KL(q, p)) / 2 of the classes' probabilities."""
        p_BC, q_BC = first_BC.log_softmax(-1), second_BC.log_softmax(-1)
        return ((p_BC.exp() - q_BC.exp()) * (p_BC - q_BC)).sum(-1) / 2

    def derivatives(self, logits_NC: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        """Of each class's logit. (N, C)"""
        from torch.nn import functional

        p_NC = logits_NC.softmax(-1)
        ones_NC = functional.one_hot(labels_N.long(), len(self.classes))
        return ones_NC - p_NC, p_NC * (1 - p_NC)

    def measure(self) -> MulticlassMetrics:
        return MulticlassMetrics(self)

    def baselines(self, on: Judging) -> dict[str, Figures]:
        """`frequencies`, the shares of the classes in training; `item_frequencies`, those of the
        item, damped."""
        import torch

        from recsys_moe.kinds.averages import DAMPING

        share_C = torch.tensor(self.shares).double()
        of_item_IC = (DAMPING * share_C).repeat(on.sizes[1], 1)
        for _, item_N, label_N, _ in on.train():
            of_item_IC.index_put_(
                (item_N, label_N.long()), torch.ones_like(label_N), accumulate=True
            )
        constant, items = self.measure(), self.measure()
        for _, item_N, label_N, _ in on.rows():
            constant.update(share_C.log().expand(len(label_N), -1), label_N)
            items.update((of_item_IC / of_item_IC.sum(1, keepdim=True))[item_N].log(), label_N)
        found, by_item = constant.compute(), items.compute()
        return {
            "frequencies": {name: found[name] for name in ("accuracy", "log_loss")},
            "item_frequencies": {name: by_item[name] for name in self.metrics},
        }

    def undefined(self, counts: Mapping[str, float]) -> tuple[str, ...]:
        """AUC needs two classes."""
        if not counts["labelled"]:
            return self.metrics
        found = [value for value in levels_in(counts).values() if value]
        return ("macro_auc",) if len(found) < 2 else ()


MOST_CLASSES = 32


class MulticlassMetrics:
    """Mean one-versus-rest AUC of the classes there are, accuracy and log loss.

    Keeps the float32 logits and label of each labelled row, as an exact AUC needs all of them.
    """

    def __init__(self, kind: Multiclass) -> None:
        self.kind, self.loss_sum, self.right = kind, 0.0, 0
        self._columns = array("f"), array("f")

    def update(self, logits_BC: Tensor, labels_B: Tensor) -> None:
        """Add a batch; rows whose label is NaN are left out."""
        mask_B = ~labels_B.isnan()
        logits_NC, labels_N = logits_BC[mask_B].detach(), labels_B[mask_B]
        self.loss_sum += self.kind.row_loss(logits_NC, labels_N).double().sum().item()
        self.right += int((logits_NC.argmax(-1) == labels_N).sum())
        for column, values in zip(self._columns, (logits_NC, labels_N), strict=True):
            column.frombytes(values.float().cpu().numpy().tobytes())

    def merge(self, other: MulticlassMetrics) -> None:
        """Add the rows of `other`."""
        self.loss_sum += other.loss_sum
        self.right += other.right
        for column, more in zip(self._columns, other._columns, strict=True):
            column.extend(more)

    def compute(self) -> Figures:
        """Every metric is None when no row is labelled; the AUC with one class only."""
        rows = len(self._columns[1])
        return {
            "macro_auc": self._auc() if rows else None,
            "accuracy": self.right / rows if rows else None,
            "log_loss": self.loss_sum / rows if rows else None,
            "rows": rows,
        }

    def _auc(self) -> float | None:
        import numpy as np
        import torch

        from recsys_moe.kinds.curves import exact_auc

        logits, labels_N = (torch.from_numpy(np.asarray(column)) for column in self._columns)
        scores_CN = logits.view(len(labels_N), -1).log_softmax(-1).t()
        is_class = [(scores_N, (labels_N == c).float()) for c, scores_N in enumerate(scores_CN)]
        found = [exact_auc(s, y) for s, y in is_class if 0 < int(y.sum()) < len(y)]
        return sum(found) / len(found) if found else None
