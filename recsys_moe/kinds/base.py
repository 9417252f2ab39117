"""What a task kind says of a label: which ones are valid, how they are counted, loss and metrics.

A kind is one file with one class and its name in the table of `recsys_moe.kinds`. Torch and numpy
are imported inside the methods that need them: `data_prep` and `--help` need neither.

Axes: B rows of a batch, N rows, U users and I items, both with one more for the OOV id.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

from recsys_moe.kinds.judging import Constant, Figures, Judging, Metrics

if TYPE_CHECKING:
    from torch import Tensor

FLOAT32_MAX = 3.4028234663852886e38
AFTER_TRAINING = ("ece_calibrated",)
"""Metrics of a map that is fitted on the best epoch: no epoch has them while it is chosen."""

Values = TypeVar("Values", bound=Any)
"""A numpy array or a tensor."""


class TaskLike(Protocol):
    """What a kind reads of a task of schema.json."""

    @property
    def kind(self) -> str: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...
    @property
    def levels(self) -> tuple[float, ...]: ...
    @property
    def shares(self) -> tuple[float, ...]: ...
    @property
    def classes(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Kind(ABC):
    """A task kind, with the range of valid labels of one task."""

    low: float | None = None
    high: float | None = None
    """Inclusive; None: unbounded."""
    levels: tuple[float, ...] = ()
    """All labels there are, ascending, where `has_levels`; else empty."""
    shares: tuple[float, ...] = ()
    """Of the levels among the training labels, each above 0."""
    classes: tuple[str, ...] = ()
    """Names of the levels, where `reads_text`; else empty."""

    name: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    """Names, in the order in which they are printed."""
    loss_metric: ClassVar[str]
    """The one that is the loss averaged over all labelled rows."""
    headline: ClassVar[str]
    higher: ClassVar[tuple[str, ...]] = ()
    """Metrics that are better when higher; a name means the same in every kind."""
    has_positives: ClassVar[bool] = False
    """Label 1 marks a positive: negatives can be sampled, and ranked lists are judged by it."""
    is_rating: ClassVar[bool] = False
    """Labels lie on a scale, and a user's history can hold them."""
    calibrates: ClassVar[bool] = False
    """Predictions have a calibrated probability, fitted on validation."""
    is_probability: ClassVar[bool] = False
    """Predictions are probabilities; a calibration can be judged against them."""
    has_levels: ClassVar[bool] = False
    """`prepare` notes the labels there are; see `levels_of`."""
    reads_text: ClassVar[bool] = False
    """Labels are names of classes in a table, and numbers of classes once prepared."""
    ranks: ClassVar[bool] = True
    """Items can be ranked by the prediction."""
    is_numeric: ClassVar[bool] = True
    """Predictions are in the unit of the labels."""
    has_noise: ClassVar[bool] = False
    """The variance of a label given its logit is a free parameter, as in a normal law."""
    repeats: ClassVar[bool] = False
    """The loss of a step copies nothing from the host: a CUDA graph can hold it."""
    likelihood: ClassVar[float] = 1.0
    """Factor of the loss in a negative log-likelihood of unit noise, up to a constant."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Counts of the training labels that the baselines need."""

    @property
    def direction(self) -> Literal["max", "min"]:
        """Which way the headline metric is better."""
        return "max" if self.headline in self.higher else "min"

    @property
    def rule(self) -> str:
        """Which labels are valid, to follow "must be"."""
        if self.low is None and self.high is None:
            return self._rule
        low, high = ("" if end is None else end for end in (self.low, self.high))
        return f"{self._rule} in {low}..{high}"

    _rule: ClassVar[str]
    remedy: ClassVar[str] = ""
    """What helps where a label of the table is not valid; `{column}` is its column."""

    @abstractmethod
    def invalid(self, values_N: Values) -> Values:
        """bool (N,): labels, none of them missing, that this kind excludes in any task."""

    def outside(self, values_N: Values) -> Values:
        """bool (N,): labels that are `invalid` or outside of the range of this task."""
        wrong_N = self.invalid(values_N)
        if self.low is not None:
            wrong_N = wrong_N | (values_N < self.low)
        return wrong_N if self.high is None else wrong_N | (values_N > self.high)

    @abstractmethod
    def statistics(self, labels_N: Any) -> dict[str, Any]:
        """Numbers per label (N,) whose sums `counted` and `weighted` read."""

    @abstractmethod
    def counted(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """What schema.json says of labels beside `labelled` and `mean`; all is 0 without any.

        `sums`: of `statistics`, `labelled`, `total`, and the ends `min` and `max` of the labels.
        """

    @abstractmethod
    def weighted(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        """What `constant` reads, with each row as often as its weight says; `labelled` > 0."""

    def levels_of(
        self, splits: Mapping[str, Mapping[str, float]]
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """`levels` and `shares` from the counts of each split; empty for kinds without."""
        return (), ()

    @abstractmethod
    def constant(self, counts: Mapping[str, float]) -> Constant:
        """From the counts of the training labels in schema.json."""

    def constants(self, counts: Mapping[str, float]) -> list[Constant]:
        """One per output."""
        return [self.constant(counts)]

    @property
    def outputs(self) -> int:
        """Logits of a row."""
        return 1

    def columns(self, task: str) -> list[str]:
        """Names of the predictions, one per output."""
        return [task]

    @abstractmethod
    def link(self, logits: Tensor) -> Tensor:
        """Predictions, increasing in the logits; with several outputs these are the last axis."""

    def predictions(self, task: str, logits: Tensor) -> dict[str, Tensor]:
        """By the names of `columns`."""
        found = self.link(logits)
        parts = [found] if self.outputs == 1 else found.unbind(-1)
        return dict(zip(self.columns(task), parts, strict=True))

    def row_losses(
        self,
        logits_B: Tensor,
        labels_B: Tensor,
        *,
        user_B: Tensor | None = None,
        weight_B: Tensor | None = None,
    ) -> Tensor:
        """Loss of each row of a batch, unweighted, 0 where the label is missing (NaN). (B,)

        `user_B` and `weight_B` are for losses that look at several rows; None: not known.
        Label and logit are replaced before the loss is taken: a NaN or an overflow multiplied by a
        zero mask afterwards would still reach the gradient.
        """
        missing_B = labels_B.isnan()
        absent = missing_B if logits_B.ndim == missing_B.ndim else missing_B[..., None]
        given = logits_B.masked_fill(absent, 0), labels_B.masked_fill(missing_B, self.filler)
        losses_B = self.row_loss(*given)
        return losses_B.masked_fill(missing_B, 0)

    filler: ClassVar[float] = 0.0
    """A valid label, in place of a missing one."""

    @abstractmethod
    def row_loss(self, logits_B: Tensor, labels_B: Tensor) -> Tensor:
        """Loss of each labelled row. (B,)"""

    @abstractmethod
    def disagreement(self, first_B: Tensor, second_B: Tensor) -> Tensor:
        """Per row between two lists of logits: symmetric, 0 where they are equal. (B,)"""

    @abstractmethod
    def derivatives(self, logits_N: Tensor, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        """Of the log likelihood by the logit, (N,) each: the first, and minus the second.

        With `has_noise`, those for a noise of 1; the first is then the residual.
        """

    @abstractmethod
    def measure(self) -> Metrics:
        """An accumulator of the metrics, without any rows."""

    @abstractmethod
    def baselines(self, on: Judging) -> dict[str, Figures]:
        """Metrics of what needs no model, by baseline."""

    def undefined(self, counts: Mapping[str, float]) -> tuple[str, ...]:
        """Metrics that labels with these counts leave undefined."""
        return () if counts["labelled"] else self.metrics

    def advice(self, label_N: Any) -> str:
        """What suits these training labels, float64 (N,), better; empty where this kind does."""
        return ""

    def advice_behind(self, counts: Mapping[str, float]) -> str:
        """The same from their counts in schema.json, for a model behind its baselines."""
        return ""


def deviation(sums: Mapping[str, Any]) -> Any:
    """Standard deviation of the population from `labelled`, `total`, `squares`; 0 without rows."""
    import numpy as np

    rows = sums["labelled"]
    return np.sqrt(max(sums["squares"] / rows - (sums["total"] / rows) ** 2, 0)) if rows else 0.0


def nine_digits(value: float) -> float:
    """More would depend on how the rows are cut into blocks."""
    return float(f"{value:.9g}")
