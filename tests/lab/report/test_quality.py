"""ROC, calibration and errors by group against scikit-learn and hand arithmetic."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_curve

from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.data.columns import load_columns
from recsys_moe.kinds import KINDS
from recsys_moe.lab.report.quality import (
    ROC_POINTS,
    counts_in_training,
    error_by,
    reliability,
    roc,
    task_quality,
)
from recsys_moe.lab.report.sample import take_sample
from tests.conftest import Command
from tests.lab.report.conftest import report


def random_rows(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits_N = torch.randn(rows, generator=generator)
    labels_N = (torch.rand(rows, generator=generator) < logits_N.sigmoid()).float()
    return logits_N, labels_N


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30))
def test_the_curve_has_the_points_of_scikit_learn(rows: list[tuple[int, bool]]) -> None:
    logits_N = torch.tensor([float(logit) for logit, _ in rows])
    labels_N = torch.tensor([float(label) for _, label in rows])
    found = roc("watch", logits_N, labels_N)
    if len(set(labels_N.tolist())) == 1:
        assert found is None
        return
    assert found is not None
    x, y, _ = roc_curve(labels_N.numpy(), logits_N.numpy(), drop_intermediate=False)
    assert found.false_positive == pytest.approx(x.tolist())
    assert found.true_positive == pytest.approx(y.tolist())


def test_the_thinned_curve_keeps_its_ends_and_its_area() -> None:
    found = roc("watch", *random_rows(20_000))
    assert found is not None
    x, y = found.false_positive, found.true_positive
    assert len(x) <= ROC_POINTS
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    area = float(torch.trapezoid(torch.tensor(y), torch.tensor(x)))
    assert area == pytest.approx(found.auc, abs=2e-4)
    assert (found.rows, found.positive) == (20_000, int(random_rows(20_000)[1].sum()))


def test_bins_by_hand() -> None:
    probability_N = torch.tensor([0.02, 0.04, 0.5, 0.52, 1.0])
    labels_N = torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0])
    found = reliability("watch", {"raw": probability_N}, labels_N)
    assert found.curves["raw"]["rows"] == [2, 2, 1]  # bins 0, 7 and 14 of 15
    assert found.curves["raw"]["predicted"] == pytest.approx([0.03, 0.51, 1.0])
    assert found.curves["raw"]["observed"] == pytest.approx([0.5, 1.0, 0.0])
    assert found.error["raw"] == pytest.approx((2 * 0.47 + 2 * 0.49 + 1 * 1.0) / 5)


def test_groups_have_equal_rows_and_their_own_error() -> None:
    count_N = torch.tensor([1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6])
    labels_N = torch.zeros(12)
    logits_N = count_N.float()  # the error of a row is its count
    found = error_by(
        "rating",
        KINDS["regression"],
        "user activity",
        count_N=count_N,
        logits_N=logits_N,
        labels_N=labels_N,
    )
    assert found.low == found.high == [1, 2, 3, 4, 5, 6]
    assert found.rows == [2] * 6
    assert found.value == pytest.approx([1, 2, 3, 4, 5, 6])
    assert found.metric == "RMSE"


def test_the_margin_is_that_of_the_mean_squared_error() -> None:
    errors_N = torch.tensor([1.0, 2.0, 3.0])  # squares 1, 4, 9: mean 14/3, deviation sqrt(49/3)
    count_N = torch.ones(3, dtype=torch.int64)
    found = error_by(
        "rating",
        KINDS["regression"],
        "x",
        count_N=count_N,
        logits_N=errors_N,
        labels_N=torch.zeros(3),
    )
    rmse = math.sqrt(14 / 3)
    standard_error = math.sqrt(49 / 3) / math.sqrt(3)
    assert found.value == pytest.approx([rmse])
    assert found.margin == pytest.approx([1.959964 * standard_error / (2 * rmse)])


def test_rows_of_one_count_are_never_in_two_groups() -> None:
    count_N = torch.tensor([7] * 50 + [9])
    logits_N, labels_N = random_rows(51)
    found = error_by(
        "watch",
        KINDS["binary"],
        "item popularity",
        count_N=count_N,
        logits_N=logits_N,
        labels_N=labels_N,
    )
    assert (found.low, found.high, found.rows) == ([7, 9], [7, 9], [50, 1])
    assert math.isnan(found.value[1])  # a single row has one class


def test_activity_and_popularity_are_training_positives(run: Path, prepared: Path) -> None:
    artifact = load_artifact(run)
    rows = load_columns(prepared, artifact.schema, "train")
    positives_N = rows.labels[:, 0] == 1
    found = counts_in_training(artifact)
    users = torch.bincount(rows.user[positives_N].long(), minlength=61)
    items = torch.bincount(rows.item[positives_N].long(), minlength=41)
    assert torch.equal(found[0], users)
    assert torch.equal(found[1], items)


def test_the_figures_of_a_run_agree_with_its_evaluation(run: Path, prepared: Path) -> None:
    artifact = load_artifact(run)
    rows = load_columns(prepared, artifact.schema, "test")
    sample = take_sample(artifact, rows, "test", most=len(rows), seed=0)
    metrics = sample.evaluation["tasks"]
    watch, rating = (task_quality(artifact, sample, index) for index in (0, 1))
    assert watch and watch.roc and watch.reliability and rating
    assert watch.roc.auc == pytest.approx(metrics["watch"]["auc"])
    assert watch.reliability.error["raw"] == pytest.approx(metrics["watch"]["ece"], abs=1e-6)
    assert (rating.roc, rating.reliability) == (None, None)
    for groups in rating.groups:
        parts = zip(groups.value, groups.rows, strict=True)
        squares = sum(rmse**2 * n for rmse, n in parts) / sum(groups.rows)
        assert squares == pytest.approx(metrics["rating"]["mse"])


def test_a_task_without_labels_has_no_figures(run: Path, prepared: Path) -> None:
    artifact = load_artifact(run)
    rows = load_columns(prepared, artifact.schema, "test")
    rows.labels[:, 1] = torch.nan
    sample = take_sample(artifact, rows, "test", most=len(rows), seed=0)
    assert task_quality(artifact, sample, 1) is None


def test_a_report_shows_the_rankings_on_record(
    run: Path, tmp_path: Path, command: Command, undrawn: None
) -> None:
    own = Path(shutil.copytree(run, tmp_path / "run"))
    page = report(own, tmp_path / "before") / "report.html"
    assert "evaluate --ranking" not in page.read_text()
    ranking = json.loads(command("evaluate", own, "--ranking", "--k", 3, "--json").out)["ranking"]
    text = (report(own, tmp_path / "after") / "report.html").read_text()
    low, high = ranking["intervals"]["ndcg"]
    for words in ("NDCG@3", f"{ranking['ndcg']:.4f}", f"{low:.4f} to {high:.4f}", "train and val"):
        assert words in text
