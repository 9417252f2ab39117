"""research/new_items.py: hidden items are in no split but test, and finished rows stay."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from research import new_items


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"FILMS": 60, "USERS": 20, "RATINGS": 600, "NEGATIVES": 10, "HIDDEN": 4}
    for name, value in sizes.items():
        monkeypatch.setattr(new_items, name, value)


@pytest.mark.slow
def test_models_with_and_without_features_score_the_same_rows_and_go_on_behind_finished_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    csv = tmp_path / "a.csv"
    line = ["--data", str(tmp_path), "--csv", str(csv), "--logs", "synthetic", "--epochs", "1"]
    new_items.main([*line, "--seeds", "1", "--rates", "0.2", "--json"])
    first = csv.read_text()
    new_items.main([*line, "--seeds", "1", "--rates", "0.2", "--json"])
    assert csv.read_text() == first
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    bare, told = found["runs"]
    assert (bare["features_only_rate"], float(told["features_only_rate"])) == ("none", 0.2)
    assert bare["rows"] == told["rows"] and bare["new_auc"] != told["new_auc"]
    one = found["gains"]["synthetic, 0.2, auc"]
    assert one["gain"] == pytest.approx(told["new_auc"] - bare["new_auc"]) and one["error"] is None
    assert np.isfinite(float(told["said_watch_with_features"]))
