"""Metrics by period: the rows of a split in the order of time, cut into parts of equal counts.

Axes: N rows of the split, B batch, P periods, T tasks.
"""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recsys_moe.data.times import UNKNOWN
from recsys_moe.errors import ConfigError
from recsys_moe.kinds import AFTER_TRAINING, Kind, by_task, kind_of
from recsys_moe.kinds.curves import auc_per_user
from recsys_moe.model.request import Request
from recsys_moe.schema import Schema

MOST_PERIODS = 1000


def check_periods(count: int) -> None:
    """Raises ConfigError."""
    if not 1 <= count <= MOST_PERIODS:
        raise ConfigError(f"--periods must be in 1..{MOST_PERIODS}, got {count}")


def period_of(time_N: Tensor, count: int) -> Tensor:
    """(N,) int64: 0, 1, ... in the order of time, -1 without a time.

    Rows of one time are in one period, the one where their middle falls, so that counts are equal
    only where times differ; periods that this leaves empty are none.
    """
    known_N = time_N != UNKNOWN
    period_N = torch.full(time_N.shape, -1)
    if known_N.any():
        moment_N, rows_M = time_N[known_N].unique(return_inverse=True, return_counts=True)[1:]
        twice_middle_M = 2 * rows_M.cumsum(0) - rows_M
        period_M = twice_middle_M * count // (2 * len(moment_N))
        period_N[known_N] = period_M.unique(return_inverse=True)[1][moment_N]
    return period_N


class Cell:
    """One task in one period."""

    def __init__(self, kind: Kind, users: int) -> None:
        self.kind, self.users = kind, users
        self.metrics: Any = kind.measure()
        self.user = array("q")
        self.predicted = self.observed = 0.0
        self.below_zero = False

    def update(self, user_B: Tensor, logits_B: Tensor, labels_B: Tensor) -> None:
        self.metrics.update(logits_B, labels_B)
        mask_B = ~labels_B.isnan()
        if self.kind.is_numeric or self.kind.is_probability:
            self.predicted += float(self.kind.link(logits_B[mask_B]).double().sum())
            self.observed += float(labels_B[mask_B].double().sum())
            self.below_zero |= bool((labels_B[mask_B] < 0).any())
        if self.kind.has_positives:
            self.user.frombytes(user_B[mask_B.cpu()].long().cpu().numpy().tobytes())

    def result(self) -> dict[str, float | None]:
        """None where the rows leave a metric undefined."""
        computed = self.metrics.compute()
        shown = {name: computed[name] for name in self.kind.metrics if name not in AFTER_TRAINING}
        if self.kind.is_probability:
            shown["normalised_entropy"] = self._normalised_entropy(computed)
        if self.kind.has_positives:
            shown["gauc"] = self._gauc()
        if self.kind.is_numeric or self.kind.is_probability:
            is_defined = self.observed > 0 and not self.below_zero
            ratio = self.predicted / self.observed if is_defined else None
            shown["predicted_over_observed"] = ratio
        return {**shown, "rows": computed["rows"]}

    def _normalised_entropy(self, computed: dict[str, Any]) -> float | None:
        rows, positive = computed["rows"], computed["positive"]
        if not 0 < positive < rows:
            return None
        rate = positive / rows
        entropy = -rate * math.log(rate) - (1 - rate) * math.log1p(-rate)
        return float(computed[self.kind.loss_metric] / entropy)

    def _gauc(self) -> float | None:
        """Users with an index of their own count."""
        user_N = torch.from_numpy(np.asarray(self.user))
        own_N = user_N < self.users
        logits_N, labels_N = (one[own_N] for one in self.metrics.rows())
        auc_U = auc_per_user(user_N[own_N], logits_N, labels_N, self.users)
        weight_U = torch.bincount(user_N[own_N], minlength=self.users)[~auc_U.isnan()]
        if not len(weight_U):
            return None
        return float((auc_U[~auc_U.isnan()] * weight_U).sum() / weight_U.sum())


class Periods:
    """Metrics of each period and task; `update` gets the rows in the order of the split.

    Normalised entropy: mean log loss over the entropy of the period's own share of positives (He et
    al. 2014, "Practical lessons from predicting clicks on ads at Facebook", section 3). GAUC: the
    mean of the users' AUC weighted by their rows (Zhu et al. 2017, "Optimized cost per click in
    Taobao display advertising"). Predicted over observed: the sum of the predictions over that of
    the labels; None where a label is below 0. Keeps 8 bytes per row, and 16 more per row and binary
    task.
    """

    def __init__(self, time_N: Tensor, schema: Schema, count: int) -> None:
        """`time_N`: seconds since 1970, int64, UNKNOWN where there is none."""
        self.time_N, self.schema = time_N, schema
        self.period_N = period_of(time_N, count)
        self.kinds = [kind_of(task) for task in schema.tasks]
        self.cells = [
            [Cell(kind, schema.user.size) for kind in self.kinds]
            for _ in range(int(self.period_N.max()) + 1)
        ]
        self.done = 0

    def update(self, request: Request, scored: tuple[Tensor, Tensor]) -> None:
        """Add the next rows; `scored`: logits and labels, of all tasks."""
        logits_BT, labels_BT = scored
        period_B = self.period_N[self.done : self.done + len(labels_BT)]
        self.done += len(labels_BT)
        for period in period_B[period_B >= 0].unique().tolist():
            at_B = (period_B == period).nonzero()[:, 0]
            user_B, labels = request.user[at_B.to(request.user.device)], labels_BT[at_B]
            logits = by_task(logits_BT[at_B], self.kinds)
            for t, cell in enumerate(self.cells[period]):
                cell.update(user_B, logits[t], labels[:, t])

    def report(self) -> dict[str, Any]:
        """`periods`, each with its first and last second, rows, and metrics by task."""
        without = int((self.time_N == UNKNOWN).sum())
        return {
            "rows_without_time": without,
            "periods": [self._of(period) for period in range(len(self.cells))],
        }

    def _of(self, period: int) -> dict[str, Any]:
        time_M = self.time_N[self.period_N == period]
        cells = zip(self.schema.tasks, self.cells[period], strict=True)
        return {
            "first": int(time_M.min()),
            "last": int(time_M.max()),
            "rows": len(time_M),
            "tasks": {task.name: cell.result() for task, cell in cells},
        }
