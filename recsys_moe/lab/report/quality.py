"""ROC, calibration, and error by user activity and item popularity.

Axes: N labelled rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd
import torch
from scipy.stats import norm
from torch import Tensor
from torchmetrics.functional.classification import binary_roc

from recsys_moe.artifact.calibration import identity
from recsys_moe.artifact.model_folder import Artifact
from recsys_moe.kinds import HIGHER_IS_BETTER, Kind, by_task, kind_of, metric_title
from recsys_moe.kinds.curves import CALIBRATION_BINS, exact_auc
from recsys_moe.lab.report.sample import Sample

ROC_POINTS = 400
GROUPS = 6
"""Groups of users or items, of about as many rows each."""
Z95 = float(norm.ppf(0.975))


@dataclass(frozen=True)
class Roc:
    """The receiver operating characteristic of one binary task."""

    task: str
    rows: int
    positive: int
    auc: float
    """Exact, of all rows and not of the points below."""
    false_positive: list[float]
    true_positive: list[float]
    """Points of the curve, thinned evenly along it; from (0, 0) to (1, 1)."""


@dataclass(frozen=True)
class Reliability:
    """Predicted probability against observed frequency, in bins of equal width."""

    task: str
    rows: int
    curves: dict[str, dict[str, list[float]]]
    """`raw` and, where calibration changes anything, `calibrated`: of each bin that has rows
    `predicted` (mean), `observed` (share of positives) and `rows`."""
    error: dict[str, float]
    """Expected calibration error: mean |predicted - observed| weighted by the rows of the bins."""


@dataclass(frozen=True)
class ErrorBy:
    """A metric of one task in groups of users by activity, or of items by popularity."""

    task: str
    metric: str
    """`RMSE` where predictions are in the unit of the labels, else the headline metric."""
    by: str
    """`user activity` or `item popularity`."""
    low: list[int]
    high: list[int]
    """Fewest and most training positives of the users (items) of each group."""
    rows: list[int]
    value: list[float]
    """NaN where it is undefined."""
    margin: list[float]
    """Half a 95% interval, from the spread of the squared errors of single rows; NaN for AUC."""

    @property
    def ends(self) -> tuple[int, int] | None:
        """Places of the worst and the best group; None where no group has a value."""
        values = pd.Series(self.value) * (1 if self.metric.lower() in HIGHER_IS_BETTER else -1)
        return None if values.isna().all() else (int(values.argmin()), int(values.argmax()))


def roc(task: str, logits_N: Tensor, labels_N: Tensor) -> Roc | None:
    """None with labels of one class only."""
    rows, positive = len(labels_N), int(labels_N.count_nonzero())
    if not 0 < positive < rows:
        return None
    scores, rank_N = logits_N.unique(return_inverse=True)  # a sigmoid would merge large logits
    x_P, y_P, _ = binary_roc(rank_N.double() / len(scores), labels_N.long())
    kept = _thinned(x_P + y_P, ROC_POINTS)
    auc = exact_auc(logits_N, labels_N)
    return Roc(task, rows, positive, auc, x_P[kept].tolist(), y_P[kept].tolist())


def _thinned(way_P: Tensor, most: int) -> Tensor:
    """Indices of at most `most` points, evenly along the ascending `way_P`; both ends stay."""
    if len(way_P) <= most:
        return torch.arange(len(way_P))
    wanted = torch.linspace(0, float(way_P[-1]), most, dtype=way_P.dtype)
    return torch.searchsorted(way_P, wanted).clamp(max=len(way_P) - 1).unique()


def reliability(task: str, curves: dict[str, Tensor], labels_N: Tensor) -> Reliability:
    """`curves`: named probabilities (N,) of the same rows.

    A probability on the border of two bins goes to the upper one, as in the metric `ece`.
    """
    bins, error = {}, {}
    for name, probability_N in curves.items():
        rows = pd.DataFrame({"predicted": probability_N.double(), "observed": labels_N.double()})
        places = (rows["predicted"] * CALIBRATION_BINS).astype(int).clip(0, CALIBRATION_BINS - 1)
        groups = rows.groupby(places)
        means, size = groups.mean(), groups.size().astype(float)
        off = (means["predicted"] - means["observed"]).abs()
        error[name] = float((off * size).sum()) / len(labels_N)
        bins[name] = {str(k): v.tolist() for k, v in means.assign(rows=size).items()}
    return Reliability(task, len(labels_N), bins, error)


def counts_in_training(artifact: Artifact) -> tuple[Tensor, Tensor]:
    """Training positives of each user and item; out-of-vocabulary ids (the last index) have 0."""
    users = torch.cat([artifact.seen["offsets"].diff(), torch.zeros(1, dtype=torch.int64)])
    items = torch.bincount(artifact.seen["items"].long(), minlength=artifact.schema.item.size + 1)
    items[artifact.schema.item.size] = 0
    return users, items


def error_by(
    task: str, kind: Kind, by: str, *, count_N: Tensor, logits_N: Tensor, labels_N: Tensor
) -> ErrorBy:
    """Groups of rows by the count of their user or item; equal counts are in one group."""
    # The group of a count is where the middle of its rows falls among all rows.
    middle = pd.Series(count_N.numpy()).rank() - 0.5
    group = (middle * GROUPS / len(count_N)).astype(int).clip(upper=GROUPS - 1)
    rows = []
    for place in middle.groupby(group).indices.values():
        mine_N = torch.from_numpy(place)
        value, margin = _metric(kind, logits_N[mine_N], labels_N[mine_N])
        least, most = count_N[mine_N].aminmax()
        rows.append((int(least), int(most), len(place), value, margin))
    columns = (list(column) for column in zip(*rows, strict=True))
    return ErrorBy(task, "RMSE" if kind.is_numeric else metric_title(kind.headline), by, *columns)


def _metric(kind: Kind, logits_N: Tensor, labels_N: Tensor) -> tuple[float, float]:
    """RMSE with its margin by the delta method, d sqrt(m) = dm / (2 sqrt(m)); or the headline."""
    if not kind.is_numeric:
        metrics = kind.measure()
        metrics.update(logits_N, labels_N)
        value = metrics.compute()[kind.headline]
        return (math.nan if value is None else value), math.nan
    squares_N = (kind.link(logits_N) - labels_N).double().square()
    rmse = math.sqrt(float(squares_N.mean()))
    if len(squares_N) < 2 or rmse == 0:
        return rmse, math.nan
    error = float(squares_N.std()) / math.sqrt(len(squares_N))
    return rmse, Z95 * error / (2 * rmse)


@dataclass(frozen=True)
class Quality:
    """All figures of one task."""

    roc: Roc | None
    reliability: Reliability | None
    groups: list[ErrorBy]


def task_quality(artifact: Artifact, sample: Sample, index: int) -> Quality | None:
    """Figures of task number `index`; None where no row is labelled."""
    task, labels_N = artifact.schema.tasks[index], sample.columns.labels[:, index]
    mask_N = ~labels_N.isnan()
    if not bool(mask_N.any()):
        return None
    kinds = [kind_of(one) for one in artifact.schema.tasks]
    logits_N, labels_N = by_task(sample.logits_NT[mask_N], kinds)[index], labels_N[mask_N]
    users_N, items_N = sample.columns.user[mask_N].long(), sample.columns.item[mask_N].long()
    kind = kinds[index]
    user_counts, item_counts = counts_in_training(artifact)
    counts = {"user activity": user_counts[users_N], "item popularity": item_counts[items_N]}
    groups = [
        error_by(task.name, kind, by, count_N=count_N, logits_N=logits_N, labels_N=labels_N)
        for by, count_N in counts.items()
    ]
    if not kind.calibrates:
        return Quality(None, None, groups)
    curves = {"raw": kind.link(logits_N)} if kind.is_probability else {}
    fit = artifact.calibration.get(task.name)
    if fit is not None and not (curves and fit == identity(fit.rows)):
        curves["calibrated"] = fit.apply(logits_N)
    shown = reliability(task.name, curves, labels_N) if curves else None
    return Quality(roc(task.name, logits_N, labels_N), shown, groups)
