"""Calibrated probabilities: one increasing map of the logit per task of them, from validation.

Isotonic regression (Zadrozny and Elkan 2002, https://doi.org/10.1145/775047.775151) of bins of
equal count, joined by straight lines in logit space. Unlike its usual steps the map increases
strictly, so that the ranking stays, and it is a few dozen plain numbers that any runtime can apply.
A temperature alone cannot bend where the model is off by different amounts at different logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from recsys_moe.model.tasks import KINDS
from recsys_moe.schema import Task

MAX_KNOTS = 32
ROWS_PER_KNOT = 50
"""Fewer rows than this in a bin tell more about chance than about the model."""
ROWS_PER_PART = 1 << 16
"""Mapped at a time, each with a number per segment; bounds the memory."""
MIN_GAP = 0.01
"""Least distance of two knots; bounds how much the map can amplify a rounding error."""


@dataclass(frozen=True)
class Calibration:
    """Through the points (logits[i], targets[i]), straight in between, slope 1 outside."""

    logits: tuple[float, ...]
    """Strictly increasing."""
    targets: tuple[float, ...]
    """Logit of the observed share of positives; strictly increasing."""
    rows: int
    """Labelled validation rows behind the fit."""

    def apply(self, logits: Tensor) -> Tensor:
        """Calibrated probabilities in 0..1 of logits, same shape.

        A sum over the segments and not a search: every runtime has its operations.
        """
        if len(self.logits) == 1:
            return torch.sigmoid(logits + (self.targets[0] - self.logits[0]))
        x_K, y_K, width_S, slope_S = self._knots(logits)
        done = (logits[..., None] - x_K[:-1]).clamp(min=0).minimum(width_S)  # in each segment
        outside = (logits - x_K[0]).clamp(max=0) + (logits - x_K[-1]).clamp(min=0)
        return torch.sigmoid(y_K[0] + (done * slope_S).sum(-1) + outside)

    def _knots(self, like: Tensor) -> tuple[Tensor, ...]:
        """Knots (K,), widths and slopes of the segments (K - 1,), of the type and place of `like`.

        Made once for each; a graph that is being exported gets its own.
        """
        if torch.compiler.is_exporting():
            return self._new_knots(like)
        key = like.dtype, like.device
        if key not in self._cache:
            with torch.inference_mode(False):
                self._cache[key] = self._new_knots(torch.empty(0, dtype=key[0], device=key[1]))
        return self._cache[key]

    def _new_knots(self, like: Tensor) -> tuple[Tensor, ...]:
        x_K, y_K = (like.new_tensor(values) for values in (self.logits, self.targets))
        width_S = x_K.diff()
        return x_K, y_K, width_S, y_K.diff() / width_S

    @cached_property
    def _cache(self) -> dict[tuple[torch.dtype, torch.device], tuple[Tensor, ...]]:
        return {}


Calibrations = dict[str, Calibration]
"""By task name; tasks without a fit are left out."""


def fit_calibrations(logits_NT: Tensor, labels_NT: Tensor, tasks: Sequence[Task]) -> Calibrations:
    """Fit each task that predicts a probability on its labelled rows; NaN: no label.

    A map that does not help on rows it was not fitted on is replaced by the identity.
    """
    calibrations = {}
    for t, task in enumerate(tasks):
        labelled_N = ~labels_NT[:, t].isnan()
        if KINDS[task.kind].link is torch.sigmoid:
            rows = logits_NT[labelled_N, t], labels_NT[labelled_N, t]
            fit = fit_calibration(*rows)
            if fit is not None:
                calibrations[task.name] = fit if generalizes(*rows) else identity(fit.rows)
    return calibrations


def identity(rows: int) -> Calibration:
    """The map that leaves every probability as it is."""
    return Calibration((0.0,), (0.0,), rows)


def generalizes(logits_N: Tensor, labels_N: Tensor) -> bool:
    """Does a map fitted on one random half lower the cross-entropy of the other, over both halves?

    False where a half has labels of one class only.
    """
    order_N = torch.randperm(len(labels_N), generator=torch.Generator().manual_seed(0))
    raw = better = 0.0
    halves = order_N.tensor_split(2)
    for fitted_M, held_out_M in (halves, halves[::-1]):
        fit = fit_calibration(logits_N[fitted_M], labels_N[fitted_M])
        if fit is None:
            return False
        for part_M in held_out_M.split(ROWS_PER_PART):
            logits_M, labels_M = logits_N[part_M].double(), labels_N[part_M].double()
            raw += _cross_entropy(logits_M.sigmoid(), labels_M)
            better += _cross_entropy(fit.apply(logits_M), labels_M)
    return better < raw


def _cross_entropy(probability_M: Tensor, labels_M: Tensor) -> float:
    return float(F.binary_cross_entropy(probability_M, labels_M, reduction="sum"))


def fit_calibration(logits_N: Tensor, labels_N: Tensor) -> Calibration | None:
    """The map of labels 0 and 1 on logits; None where one class is missing or a logit not finite.

    Shares are smoothed, (positives + 1) / (rows + 2), which keeps their logits finite.
    """
    rows, positive = len(labels_N), int(labels_N.sum())
    if not 0 < positive < rows or not bool(logits_N.isfinite().all()):
        return None
    order_N = logits_N.argsort(stable=True)
    bins = min(MAX_KNOTS, max(1, rows // ROWS_PER_KNOT))
    pools: list[_Pool] = []
    for part_N in order_N.tensor_split(bins):
        logit_sum, positives = (float(v[part_N].double().sum()) for v in (logits_N, labels_N))
        pools.append(_Pool(logit_sum, positives, len(part_N)))
        while len(pools) > 1 and not pools[-2].lies_before(pools[-1]):
            last = pools.pop()
            pools[-1] = pools[-1].joined(last)
    return Calibration(tuple(p.logit for p in pools), tuple(p.target for p in pools), rows)


@dataclass(frozen=True)
class _Pool:
    """Rows that share a knot: pooled adjacent violators of the isotonic regression."""

    logit_sum: float
    positives: float
    rows: int

    @property
    def logit(self) -> float:
        return self.logit_sum / self.rows

    @property
    def target(self) -> float:
        return math.log((self.positives + 1) / (self.rows - self.positives + 1))

    def lies_before(self, other: _Pool) -> bool:
        return self.logit + MIN_GAP <= other.logit and self.target < other.target

    def joined(self, other: _Pool) -> _Pool:
        return _Pool(
            self.logit_sum + other.logit_sum,
            self.positives + other.positives,
            self.rows + other.rows,
        )


def to_json(calibrations: Calibrations) -> dict[str, Any]:
    """Plain numbers by task name."""
    return {name: asdict(calibration) for name, calibration in calibrations.items()}


def from_json(content: dict[str, Any]) -> Calibrations:
    """Inverse of `to_json`. Raises TypeError, ValueError, KeyError or AttributeError."""
    calibrations = {}
    for name, raw in content.items():
        logits, targets = (tuple(float(v) for v in raw[key]) for key in ("logits", "targets"))
        if len(logits) != len(targets) or not all(map(_increases, (logits, targets))):
            raise ValueError(f"the knots of {name} must increase strictly")
        calibrations[name] = Calibration(logits, targets, int(raw["rows"]))
    return calibrations


def _increases(values: tuple[float, ...]) -> bool:
    finite = bool(values) and all(map(math.isfinite, values))
    return finite and all(a < b for a, b in zip(values, values[1:], strict=False))
