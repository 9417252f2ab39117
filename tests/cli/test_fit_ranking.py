"""`fit` prints NDCG@10 beside popularity: what `evaluate --ranking` has, of some users."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from recsys_moe.cli import inference
from recsys_moe.inference.evaluation import ranking
from recsys_moe.inference.evaluation.ranking import evaluate_ranking, sample_ranking
from tests.conftest import Command


def test_of_all_users_it_is_what_evaluate_ranking_has(run: Path) -> None:
    whole = evaluate_ranking(run, "val")
    found = sample_ranking(run, "val", most_pairs=10**9)
    assert found is not None and found["users"] == found["of_users"] == whole["users"]
    assert found["ndcg"] == pytest.approx(whole["ndcg"], abs=1e-12)
    popular = whole["baselines"]["popularity"]["ndcg"]
    assert found["baselines"]["popularity"]["ndcg"] == pytest.approx(popular, abs=1e-12)


@pytest.mark.parametrize(("most_pairs", "users"), [(399, 9), (39, 1), (10**9, 20)])
def test_as_many_users_as_the_scores_allow_the_same_every_time(
    run: Path, most_pairs: int, users: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 items: 399 scores are 9 lists; one user at least, and here 20 at the most."""
    monkeypatch.setattr(ranking, "MOST_USERS", 20)
    first, again = (sample_ranking(run, "val", most_pairs=most_pairs) for _ in range(2))
    assert first is not None and first == again and first["users"] == users


def test_the_end_of_a_fit_prints_it_and_json_has_it(
    run: Path,
    tmp_path: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`finish` ends as `fit` does; 1,575 rows in its best epoch, 1 or 2, allow 39 lists or more."""
    own = shutil.copytree(run, tmp_path / "run")
    found = json.loads(command("finish", own, "--json").out)["ranking"]
    assert found["k"] == 10 and found["items"] == 40 and found["users"] >= 39
    lines = command("finish", own).out.splitlines()
    visited = json.loads(command("evaluate", own, "--json").out)["experts_per_example"]
    shown = command("evaluate", own).out
    assert f"  experts visited for all tasks: {visited:.2f} an example" in shown
    (place,) = (n for n, line in enumerate(lines) if f"NDCG@10 {found['ndcg']:.4f}" in line)
    assert f"{found['baselines']['popularity']['ndcg']:.4f}" in lines[place + 1]
    assert "ranking" not in json.loads((own / "evaluation" / "val.json").read_text())
    worse = {**found, "ndcg": 0.1, "baselines": {"popularity": {"ndcg": 0.2}}}
    monkeypatch.setattr(ranking, "sample_ranking", lambda *given, **named: worse)
    assert inference.sampled(own, {"split": "val", "epoch": 1}, None) == worse
    assert "val: watch NDCG@10 0.1000" in caplog.messages[-1] and "0.2000" in caplog.messages[-1]
