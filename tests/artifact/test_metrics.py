"""Metrics against scikit-learn and against fractions a reader can redo. Axes: B batch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from recsys_moe.artifact.calibration import Calibration, fit_calibration
from recsys_moe.artifact.metrics import RoutingMetrics
from recsys_moe.kinds import KINDS
from recsys_moe.kinds.binary import BinaryMetrics
from recsys_moe.kinds.curves import exact_auc
from recsys_moe.kinds.regression import RegressionMetrics
from recsys_moe.lab.report.quality import roc
from tests.kinds.test_contract import kind_for, spread

NAN = math.nan


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=2, max_size=60))
def test_auc_equals_scikit_learn_also_with_many_ties(rows: list[tuple[int, bool]]) -> None:
    scores = torch.tensor([score / 12 for score, _ in rows])
    labels = torch.tensor([float(label) for _, label in rows])
    assume(0 < labels.sum() < len(labels))
    assert exact_auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_binary_metrics_in_pieces_equal_scikit_learn_on_the_whole() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(1000, generator=generator)
    labels = (torch.rand(1000, generator=generator) < 0.4).float()
    labels[::7] = NAN
    metrics = BinaryMetrics()
    for rows in torch.arange(1000).split(64):
        metrics.update(logits[rows], labels[rows])
    result = metrics.compute()
    known = ~labels.isnan()
    scores = logits[known].double().sigmoid()
    assert result["rows"] == int(known.sum()) and result["positive"] == int(labels[known].sum())
    assert result["auc"] == pytest.approx(roc_auc_score(labels[known], scores), abs=1e-9)
    assert result["bce"] == pytest.approx(log_loss(labels[known], scores), abs=1e-6)


def test_auc_tells_logits_apart_whose_probabilities_are_both_1_in_float32() -> None:
    """sigmoid of 17.5 and of 20 is 1 - 2.5e-8 and 1 - 2e-9: both round to 1. Two positives above
    three negatives win 6 of 6 pairs."""
    metrics = BinaryMetrics()
    logits, labels = torch.tensor([20.0, 19, 18, 17.5, -3]), torch.tensor([1.0, 1, 0, 0, 0])
    assert logits.sigmoid()[:4].tolist() == [1, 1, 1, 1]
    metrics.update(logits, labels)
    assert metrics.compute()["auc"] == exact_auc(logits, labels) == 1


def test_calibration_error_has_15_bins_of_equal_width() -> None:
    """.49 and .51 share one of 15 bins (7/15 to 8/15), with a gap of |.5 - .5| = 0; 14 or 16 part
    them. .06 and .07 are parted at 1/15, with gaps of |.06 - 1| and .07; 13, 14 or 17 join them.
    """
    metrics = BinaryMetrics()
    metrics.update(torch.tensor([0.49, 0.51, 0.06, 0.07]).logit(), torch.tensor([1.0, 0, 1, 0]))
    assert metrics.compute()["ece"] == pytest.approx((0.94 + 0.07) / 4)


def test_a_probability_of_exactly_1_belongs_to_the_last_bin() -> None:
    """sigmoid(20) is 1 in float32, sigmoid(3) .9526: both in the last of 15 bins, which begins at
    14/15 = .933, of which one in two is positive. |(.9526 + 1) / 2 - 1/2| = .4763; apart they would
    have the gaps 1 - .9526 and 1, with the mean .5237."""
    metrics = BinaryMetrics()
    metrics.update(torch.tensor([3.0, 20]), torch.tensor([1.0, 0]))
    assert metrics.compute()["ece"] == pytest.approx((1 / (1 + math.exp(-3)) + 1) / 2 - 0.5)


def test_one_class_of_more_rows_than_float32_can_count_is_one_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """2**24 + 1 ones add up to 2**24 in float32."""
    rows = 2**24 + 1
    logits_N, labels_N = torch.zeros(()).expand(rows), torch.ones(()).expand(rows)
    metrics = BinaryMetrics()
    monkeypatch.setattr(metrics, "rows", lambda: (logits_N, labels_N))
    monkeypatch.setattr("recsys_moe.kinds.curves.calibration_error", lambda *unused: 0.0)
    result = metrics.compute()
    assert (result["auc"], result["positive"], result["rows"]) == (None, rows, rows)
    assert fit_calibration(logits_N, labels_N) is None
    assert roc("watch", logits_N, labels_N) is None


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_auc_of_one_class_is_undefined_and_not_zero(label: float) -> None:
    metrics = BinaryMetrics()
    metrics.update(torch.randn(5), torch.full((5,), label))
    assert metrics.compute()["auc"] is None


@pytest.mark.parametrize("name", KINDS)
def test_no_labelled_row_leaves_every_metric_undefined(name: str) -> None:
    kind = kind_for(name)
    metrics = kind.measure()
    metrics.update(spread(kind, torch.randn(3)), torch.full((3,), NAN))
    assert {metrics.compute()[metric] for metric in kind.metrics} == {None}


def test_regression_metrics_by_hand() -> None:
    """Errors -2, 1, 0 over two batches: MSE 5/3, RMSE sqrt(5/3), MAE 1."""
    metrics = RegressionMetrics()
    metrics.update(torch.tensor([3.0, 9.0]), torch.tensor([5.0, NAN]))
    metrics.update(torch.tensor([4.0, 2.0]), torch.tensor([3.0, 2.0]))
    expected = {"mse": 5 / 3, "rmse": math.sqrt(5 / 3), "mae": 1.0, "rows": 3}
    assert metrics.compute() == pytest.approx(expected)


def test_load_is_the_share_of_visits_per_expert() -> None:
    """Visits 2, 1, 0 over 2 examples."""
    metrics = RoutingMetrics()
    metrics.update(torch.tensor([[True, False, False], [True, True, False]]))
    result = metrics.compute()
    assert result["experts_per_example"] == 1.5
    assert result["load"] == pytest.approx([2 / 3, 1 / 3, 0])


def test_rows_are_kept_in_order_over_batches_and_merges() -> None:
    parts = [BinaryMetrics(), BinaryMetrics()]
    for part in range(100):
        logits = torch.arange(3 * part, 3 * part + 3).double()
        parts[part // 50].update(logits, torch.tensor([0.0, 1.0, NAN]))
    parts[0].merge(parts[1])
    logits, labels = parts[0].rows()
    assert torch.equal(logits, torch.tensor([n for n in range(300) if n % 3 != 2]).float())
    assert torch.equal(labels, torch.tensor([0.0, 1.0] * 100))
    assert all(torch.equal(column, torch.empty(0)) for column in BinaryMetrics().rows())


def test_a_calibration_may_come_after_the_rows() -> None:
    calibration = Calibration((-1.0, 1.0), (-2.0, 3.0), 10)
    first, later = BinaryMetrics(calibration), BinaryMetrics()
    for metrics in (first, later):
        metrics.update(torch.tensor([-1.0, 0.5, 2.0]), torch.tensor([0.0, 1.0, torch.nan]))
    assert later.compute()["ece_calibrated"] is None
    later.calibration = calibration
    assert later.compute() == first.compute()
    # Straight lines: -1 -> -2 and 0.5 -> -2 + 1.5 * 5 / 2 = 1.75; each row alone in its bin.
    low, high = torch.sigmoid(torch.tensor([-2.0, 1.75])).tolist()
    assert first.compute()["ece_calibrated"] == pytest.approx((low + 1 - high) / 2)
