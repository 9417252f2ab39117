"""Calibration: the map is the isotonic one of its bins, increases, and helps on other rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.artifact.calibration import (
    MAX_KNOTS,
    Calibration,
    fit_calibration,
    from_json,
    generalizes,
    helpful_calibration,
    identity,
    to_json,
)
from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.artifact.evaluation import Evaluation
from recsys_moe.artifact.model_folder import load_artifact, save_artifact
from recsys_moe.config.settings import parse_config
from recsys_moe.model.output import Output
from recsys_moe.routers import Routing
from recsys_moe.schema import Schema

NUMBERS = st.floats(-20, 20, width=32)


def overconfident(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits three times too large for their labels."""
    generator = torch.Generator().manual_seed(seed)
    honest = torch.randn(rows, generator=generator)
    labels = (torch.rand(rows, generator=generator) < honest.sigmoid()).float()
    return 3 * honest, labels


def test_the_map_goes_through_its_points_and_has_slope_1_outside() -> None:
    fit = Calibration((-1.0, 0.0, 2.0), (-2.0, 1.0, 2.0), rows=9)
    logits = torch.tensor([-3.0, -1.0, -0.5, 0.0, 1.0, 2.0, 5.0])
    # -2 - 2; the point; halfway from -2 to 1; the point; halfway from 1 to 2; the point; 2 + 3
    expected = torch.tensor([-4.0, -2.0, -0.5, 1.0, 1.5, 2.0, 5.0])
    torch.testing.assert_close(fit.apply(logits), expected.sigmoid())
    one_point = Calibration((1.0,), (3.0,), rows=9)  # a shift by 2
    torch.testing.assert_close(one_point.apply(logits), (logits + 2).sigmoid())


def test_a_fit_by_hand_pools_bins_that_are_out_of_order() -> None:
    logits = torch.arange(3.0).repeat_interleave(50)
    labels = torch.cat([torch.ones(50) * (torch.arange(50) < n) for n in (30, 20, 45)])
    fit = fit_calibration(logits, labels)
    # 150 rows: 3 bins of 50 with 30, 20 and 45 positives. The first two violate the order: pooled,
    # 50 of 100 at the mean logit 0.5. Targets log((50 + 1) / (50 + 1)) and log((45 + 1) / (5 + 1)).
    assert fit is not None and fit.rows == 150
    assert fit.logits == pytest.approx((0.5, 2.0))
    assert fit.targets == pytest.approx((0.0, torch.tensor(46 / 6).log().item()))


@given(st.lists(st.tuples(NUMBERS, st.booleans()), min_size=2, max_size=300), NUMBERS, NUMBERS)
def test_any_fit_is_finite_and_keeps_the_ranking(
    rows: list[tuple[float, bool]], first: float, second: float
) -> None:
    logits, labels = torch.tensor([r[0] for r in rows]), torch.tensor([float(r[1]) for r in rows])
    fit = fit_calibration(logits, labels)
    if labels.min() == labels.max():
        assert fit is None
        return
    assert fit is not None and len(fit.logits) <= MAX_KNOTS
    low, high = sorted((first, second))
    below, above = fit.apply(torch.tensor([low, high], dtype=torch.float64)).tolist()
    assert 0 <= below <= above <= 1
    assert from_json(json.loads(json.dumps(to_json({"t": fit})))) == {"t": fit}


def test_only_labelled_rows_of_binary_tasks_count(prepared: Path) -> None:
    evaluation = Evaluation(Schema.load(prepared), parse_config({}))
    logits, labels = overconfident(500, seed=0)
    missing = torch.full_like(labels, torch.nan)
    stacked = torch.stack([torch.cat([labels, missing]), torch.ones(1000)], dim=1)
    both = torch.stack([torch.cat([logits, -logits]), torch.zeros(1000)], dim=1)
    everyone = Routing(torch.ones(1000, 1), torch.ones(1000, 1, dtype=torch.bool))
    evaluation.update(Output(both, {"routings": [everyone, everyone]}), stacked)
    assert evaluation.calibrate() == {"watch": fit_calibration(logits, labels)}


def test_logits_that_are_not_finite_are_not_fitted() -> None:
    assert fit_calibration(torch.tensor([0.0, torch.nan]), torch.tensor([0.0, 1.0])) is None


@pytest.mark.parametrize(
    "content",
    [
        {"t": {"logits": [0, 1], "targets": [1, 0], "rows": 2}},
        {"t": {"logits": [], "targets": [], "rows": 0}},
        {"t": {"logits": [0], "targets": [float("nan")], "rows": 2}},
    ],
)
def test_knots_that_do_not_increase_are_refused(content: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must increase"):
        from_json(content)


def test_fit_leaves_a_calibration_and_evaluation_reports_both_errors(run: Path) -> None:
    artifact = load_artifact(run)
    assert set(artifact.calibration) == {"watch"}
    assert artifact.calibration["watch"].rows == artifact.card["val"]["tasks"]["watch"]["rows"]
    watch = evaluate_artifact(run, "val", None)["tasks"]["watch"]
    assert watch["ece_calibrated"] == pytest.approx(
        artifact.card["val"]["tasks"]["watch"]["ece_calibrated"], abs=1e-6
    )


def test_an_evaluation_applies_the_map_of_the_model(
    run: Path, prepared: Path, tmp_path: Path
) -> None:
    trained, shift = load_artifact(run), Calibration((0.0,), (1.0,), rows=9)
    weights, out = trained.model.state_dict(), tmp_path / "model"
    save_artifact(
        out,
        weights,
        trained.config,
        run / "model",
        seen=trained.seen,
        card={},
        calibrations={"watch": shift},
    )
    watch = evaluate_artifact(out, "val", prepared)["tasks"]["watch"]
    # Sigmoids of shifted logits: probabilities 0.1 to 0.25 too high where they were about right.
    assert watch["ece_calibrated"] > watch["ece"] + 0.1


def test_a_map_that_does_not_help_on_held_out_rows_is_not_kept() -> None:
    """300 rows of a model that is right already: 6 bins of 50 follow chance."""
    wrong, labels = overconfident(300, seed=0)
    for logits, helps in ((wrong, True), (wrong / 3, False)):
        assert generalizes(logits, labels) is helps
        found = helpful_calibration(logits, labels)
        assert found == (fit_calibration(logits, labels) if helps else identity(rows=300))
    assert torch.equal(identity(300).apply(wrong), wrong.sigmoid())


def test_bins_too_close_to_tell_apart_share_a_knot() -> None:
    logits = torch.tensor([0.0, 0.005]).repeat_interleave(50)
    labels = torch.cat([torch.ones(50) * (torch.arange(50) < n) for n in (10, 40)])
    fit = fit_calibration(logits, labels)
    # 100 rows: 2 bins, 0.005 < MIN_GAP apart. Pooled: 50 of 100, log((50 + 1) / (50 + 1)) = 0.
    assert fit is not None
    assert fit.logits == pytest.approx((0.0025,)) and fit.targets == pytest.approx((0.0,))
