"""Calibrated probabilities: an increasing map of the logit per binary task, from validation.

Isotonic regression (Zadrozny and Elkan 2002, https://doi.org/10.1145/775047.775151) of bins of
equal count, joined by straight lines in logit space. Unlike its usual steps the map increases
strictly, so that the ranking stays, and it is a few dozen plain numbers that any runtime can apply.
A temperature alone cannot bend where the model is off by different amounts at different logits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from recsys_moe.artifact.reading import damaged, reading_model
from recsys_moe.files import read_object
from recsys_moe.kinds.curves import ROWS_PER_PART
from recsys_moe.schema import Schema

MAX_KNOTS = 32
ROWS_PER_KNOT = 50
"""Fewer rows than this in a bin tell more about chance than about the model."""
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
        x_K, y_K = (logits.new_tensor(values) for values in (self.logits, self.targets))
        width_S = x_K.diff()
        done = (logits[..., None] - x_K[:-1]).clamp(min=0).minimum(width_S)  # in each segment
        outside = (logits - x_K[0]).clamp(max=0) + (logits - x_K[-1]).clamp(min=0)
        return torch.sigmoid(y_K[0] + (done * (y_K.diff() / width_S)).sum(-1) + outside)


Calibrations = dict[str, Calibration]
"""By task name; tasks without a fit are left out."""


def helpful_calibration(logits_N: Tensor, labels_N: Tensor) -> Calibration | None:
    """`fit_calibration`; the identity where that does not help on rows it was not fitted on."""
    fit = fit_calibration(logits_N, labels_N)
    return fit if fit is None or generalizes(logits_N, labels_N) else identity(fit.rows)


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
    rows, positive = len(labels_N), int(labels_N.count_nonzero())
    if not 0 < positive < rows or not bool(logits_N.isfinite().all()):
        return None
    order_N = logits_N.argsort(stable=True)
    bins = min(MAX_KNOTS, max(1, rows // ROWS_PER_KNOT))
    pools: list[Sequence[float]] = []  # sum of logits, positives, rows: pooled adjacent violators
    for part_N in order_N.tensor_split(bins):
        pool = [float(v[part_N].double().sum()) for v in (logits_N, labels_N)] + [len(part_N)]
        while pools and not _is_before(_knot(pools[-1]), _knot(pool)):
            pool = [a + b for a, b in zip(pools.pop(), pool, strict=True)]
        pools.append(pool)
    logits, targets = zip(*map(_knot, pools), strict=True)
    return Calibration(logits, targets, rows)


def _knot(pool: Sequence[float]) -> tuple[float, float]:
    """Mean logit, and logit of the smoothed share of positives."""
    logit_sum, positives, rows = pool
    return logit_sum / rows, math.log((positives + 1) / (rows - positives + 1))


def _is_before(knot: tuple[float, float], other: tuple[float, float]) -> bool:
    return knot[0] + MIN_GAP <= other[0] and knot[1] < other[1]


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


def load(path: Path, schema: Schema) -> Calibrations:
    """Read a file. Raises DataError for one that does not fit the schema."""
    with reading_model(path):
        found = from_json(read_object(path))
    names = [task.name for task in schema.tasks]
    if strange := sorted(found.keys() - set(names)):
        raise damaged(path, f"its tasks must be among {names}, got {strange}")
    return found
