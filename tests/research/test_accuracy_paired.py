"""Ours against peers on the same users: differences per user and their intervals."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.config.files import merge
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError
from recsys_moe.inference.evaluation.ranking import evaluate_ranking
from recsys_moe.inference.evaluation.ranking_metrics import PerUser, means
from research.accuracy import finished, paired
from research.accuracy.finished import Row
from research.accuracy.judge import Judge, answers_of
from research.accuracy.peers import PEERS
from research.accuracy.rows import Scores
from tests.conftest import tells


def per_user(values: list[float], weights: list[float]) -> PerUser:
    return PerUser(torch.tensor(values).double(), torch.tensor(weights).double())


@pytest.fixture
def chosen(tmp_path: Path, prepared: Path) -> Path:
    """Rows of a session that tested EASE with l2 = 30, and popularity."""
    every, data = dict.fromkeys(finished.FIGURES), Judge(prepared).data
    ease = Row("ease", "test", 0, '{"l2": 30}', every, 1.0, "numpy 2", data, "c", "2026-11-26")
    for row in (ease, replace(ease, peer="popularity", settings="{}")):
        finished.add(tmp_path / "rows.csv", row)
    return tmp_path / "rows.csv"


def test_a_run_has_the_figures_of_evaluate_and_its_ranking(run: Path, prepared: Path) -> None:
    judge = Judge(prepared)
    found = means(judge.per_user(paired.answers(load_artifact(run), judge), "test"))
    rating = evaluate_artifact(run, "test", None)["tasks"]["rating"]
    assert found["ndcg"] == pytest.approx(evaluate_ranking(run, "test")["ndcg"], abs=1e-12)
    assert found["mse"] == pytest.approx(rating["mse"], abs=1e-6)


def test_scores_of_a_peer_have_the_figures_that_its_table_has(prepared: Path) -> None:
    judge, rng = Judge(prepared), np.random.default_rng(0)
    sizes = judge.schema.user.size, judge.schema.item.size
    scores = Scores(*(rng.normal(size=sizes).astype(np.float32) for _ in range(2)))
    table = judge.figures(scores, "test", probabilities=False)
    found = means(judge.per_user(answers_of(scores), "test"))
    assert found == pytest.approx({name: table[name] for name in ("ndcg", "mse")}, abs=1e-6)


def test_the_difference_is_of_the_same_users_and_counts_their_rows() -> None:
    """Ours less theirs: 1 - 2 of three rows, 4 - 2 of one: (3 * -1 + 2) / 4 = -0.25."""
    ours = {"mse": per_user([1, 4], [3, 1]), "ndcg": per_user([0.5, 0.5], [1, 1])}
    (found,) = paired.differences(ours, {"mse": per_user([2, 2], [3, 1])})
    assert (found["ours"], found["theirs"], found["difference"]) == (1.75, 2, -0.25)
    assert (found["low"], found["high"]) == (-1, 2)  # draws of one user alone, twice


def test_a_difference_that_is_the_same_for_every_user_is_sure_however_users_differ() -> None:
    values = np.random.default_rng(0).normal(size=50).tolist()
    ours = {"ndcg": per_user([value + 0.125 for value in values], [1.0] * 50)}
    (found,) = paired.differences(ours, {"ndcg": per_user(values, [1.0] * 50)})
    assert [found[name] for name in ("difference", "low", "high")] == pytest.approx([0.125] * 3)


def test_the_command_fits_the_chosen_settings_and_prints_a_row_for_each_peer(
    run: Path, prepared: Path, chosen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [run, "--data", prepared, "--peers", "ease,popularity", "--chosen", chosen]
    paired.main([str(word) for word in words])
    said = capsys.readouterr()
    result = json.loads(said.out.splitlines()[-1])
    assert [row["peer"] for row in result["rows"]] == [PEERS["ease"].title, "popularity"]
    ranking = evaluate_ranking(run, "test")
    popular = result["rows"][1]
    assert popular["ours"] == pytest.approx(ranking["ndcg"])
    assert popular["theirs"] == pytest.approx(ranking["baselines"]["popularity"]["ndcg"])
    assert popular["low"] <= popular["difference"] <= popular["high"]
    assert f"| popularity | NDCG@10 | {popular['ours']:.4f}" in said.out


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit, match="2"):
        paired.main([str(word) for word in words])
    return capsys.readouterr().err


def test_a_peer_that_no_sitting_tested_on_these_data_is_refused(
    run: Path, prepared: Path, chosen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings that were chosen on other data are none."""
    rows = finished.read(chosen)
    finished.add(chosen, replace(rows[0], peer="mmoe", data="movielens-1m d465d7198c41"))
    said = refused(
        capsys,
        run,
        "--data",
        prepared,
        "--peers",
        "ease,mmoe",
        "--chosen",
        chosen,
        "--peers-python",
        sys.executable,
    )
    assert tells(said, f"error: --chosen {chosen} ... mmoe on synthetic")


def test_a_run_on_other_data_is_refused(
    run: Path, featured: Path, chosen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished.add(chosen, replace(finished.read(chosen)[1], data=Judge(featured).data))
    words = [run, "--data", featured, "--peers", "popularity", "--chosen", chosen]
    with pytest.raises(SystemExit, match="3"):
        paired.main([str(word) for word in words])
    said = capsys.readouterr().err
    assert tells(said, f"RUN ... --data {featured}, got {run}")


def test_what_is_no_seed_of_the_same_configuration_is_refused(
    run: Path, prepared: Path, chosen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", prepared, "--peers", "popularity", "--chosen", chosen]
    assert "got seeds [0, 0]" in refused(capsys, run, run, *words)
    model = load_artifact(run)
    config = model.config.model_dump(mode="json")
    other = merge(config, {"trainer": {"seed": 1}, "optim": {"lr": 0.5}})
    with pytest.raises(ConfigError, match=r"got seeds \[0, 1\] .*settings"):
        paired.check_seeds([model, replace(model, config=parse_config(other))])
    paired.check_seeds(
        [model, replace(model, config=parse_config(merge(config, {"trainer": {"seed": 1}})))]
    )
