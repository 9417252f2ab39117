"""What models and baselines are judged by: labelled rows (N), metrics, the best constant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor


Figures = dict[str, float | int | None]
"""Metrics by name; None where the rows leave one undefined."""


class Constant(NamedTuple):
    """The best constant logit on the training labels."""

    logit: float
    scale: float
    """Unit of a logit: 1, or the standard deviation of the labels."""
    loss: float
    """Mean loss of `logit`, above 0."""


class Labelled(NamedTuple):
    """Rows with a label of one task."""

    user: Tensor
    item: Tensor
    """(N,) int64."""
    label: Tensor
    weight: Tensor
    """(N,) float64; the weight is 1 where rows have none."""


LabelledRows = Callable[[], Iterator[Labelled]]


class Judging(NamedTuple):
    """What baselines are fitted on and judged by."""

    train: LabelledRows
    """Of the training split."""
    rows: LabelledRows
    """Those that are judged."""
    sizes: tuple[int, int]
    """Users and items, both with the OOV id."""
    counts: Mapping[str, float]
    """Of the training labels."""


class Metrics(Protocol):
    """Metrics over all labelled rows of a split, fed batch by batch."""

    def update(self, logits_B: Tensor, labels_B: Tensor) -> None:
        """Add a batch; rows whose label is NaN are left out."""

    def merge(self, other: Any) -> None:
        """Add the rows of `other`, of the same class."""

    def compute(self) -> Figures:
        """Every metric of `Kind.metrics`, and `rows`."""
