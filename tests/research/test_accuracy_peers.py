"""Accuracy beside other people's recommenders: judged by our own code, chosen without the test."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from recsys_moe.artifact.evaluate import evaluate_artifact
from recsys_moe.artifact.model_folder import load_artifact
from recsys_moe.inference.evaluation.ranking import evaluate_ranking
from recsys_moe.inference.predictor import Predictor
from research.accuracy import __main__ as accuracy
from research.accuracy import finished, table
from research.accuracy.finished import Row
from research.accuracy.judge import Judge, of_rows
from research.accuracy.peers import PEERS
from research.accuracy.rows import Part, Scores, TrainingRows
from research.accuracy.scorers import linear, ratings
from tests.conftest import tells

ROOT = Path(__file__).parents[2]
LISTS = ("ndcg", "recall", "mrr", "hit_rate", "coverage", "popularity")
Main = Callable[..., int]


@pytest.fixture
def main(prepared: Path, tmp_path: Path) -> Main:
    """The command on `prepared`, its exit code; rows and table go to `tmp_path`."""

    def call(*words: object) -> int:
        with pytest.raises(SystemExit) as end:
            accuracy.main(["--data", str(prepared), "--out", str(tmp_path), *map(str, words)])
        assert isinstance(end.value.code, int)
        return end.value.code

    return call


def part(*lines: tuple[int, int, float, float]) -> Part:
    """Rows of user, item, watch, rating."""
    user, item, watch, rating = zip(*lines, strict=True)
    labels = (np.array(column, np.float32) for column in (watch, rating))
    return Part(np.array(user), np.array(item), *labels)


SMALL = TrainingRows(
    part((0, 0, 1, 5), (0, 1, 1, 4), (1, 1, 1, 3), (1, 2, 0, np.nan), (2, 0, 1, 1), (2, 1, 0, 1)),
    part((0, 2, 1, 2)),
    users=3,
    items=3,
)
WATCHED = np.array([[1, 1, 0], [0, 1, 0], [1, 0, 0]])


def test_scores_are_judged_as_evaluate_and_its_ranking_judge_a_model(
    run: Path, prepared: Path
) -> None:
    predictor = Predictor(load_artifact(run))
    user_U = torch.arange(predictor.users.feature.size)
    watch_UI, rating_UI = (predictor.catalogue_logits(user_U, task).numpy() for task in (0, 1))
    found = Judge(prepared).figures(Scores(watch_UI, rating_UI), "test", probabilities=True)
    ranking, whole = evaluate_ranking(run, "test"), evaluate_artifact(run, "test", None)
    for name in (*LISTS, "gauc"):
        assert found[name] == pytest.approx(ranking[name], abs=1e-12), name
    binary, regression = whole["tasks"]["watch"], whole["tasks"]["rating"]
    assert found["auc"] == pytest.approx(binary["auc"], abs=1e-5)
    assert found["bce"] == pytest.approx(binary["bce"], abs=1e-6)
    assert found["mse"] == pytest.approx(regression["mse"], abs=1e-6)
    # By the weights of schema.json, 0.9 and 0.1; the run has 1 and 1.
    assert found["loss"] == pytest.approx(0.9 * binary["bce"] + 0.1 * regression["mse"], abs=1e-6)


def test_an_id_that_training_does_not_know_counts_as_the_average_one() -> None:
    """Scores 0 1 / 2 5: an unknown item of user 1 has (2 + 5) / 2, both unknown 8 / 4."""
    scores_UI = torch.tensor([[0.0, 1.0], [2.0, 5.0]])
    found = of_rows(scores_UI, torch.tensor([1, 1, 2, 2]), torch.tensor([1, 2, 0, 2]))
    assert found.tolist() == [5, 3.5, 1, 2]


def test_popularity_counts_watchers_and_reaches_what_evaluate_calls_popularity(
    run: Path, prepared: Path
) -> None:
    assert linear.popularity(SMALL, {}, 0)().watch.tolist() == [[2, 2, 0]] * 3  # type: ignore
    judge = Judge(prepared)
    scores = linear.popularity(judge.training_rows(), {}, 0)()
    found = judge.figures(scores, "test", probabilities=False)
    baseline = evaluate_ranking(run, "test")["baselines"]["popularity"]
    assert {name: found[name] for name in LISTS} == pytest.approx(
        {name: baseline[name] for name in LISTS}
    )


def test_ease_minimises_its_objective_with_a_diagonal_of_zero(prepared: Path) -> None:
    """At the minimum the gradient of |x_j - X b_j|^2 + l2 |b_j|^2 is 0 but for b_jj, which is 0."""
    given, l2 = Judge(prepared).training_rows(), 7.0
    seen_UI = linear.positive_matrix(given).toarray().astype(np.float64)
    scores_UI = linear.ease(given, {"l2": l2}, 0)().watch
    assert scores_UI is not None
    weights_II = np.linalg.lstsq(seen_UI, scores_UI, rcond=None)[0]  # 60 users: X has full rank
    assert np.abs(np.diag(weights_II)).max() < 1e-5
    gradient_II = seen_UI.T @ (seen_UI @ weights_II - seen_UI) + l2 * weights_II
    np.fill_diagonal(gradient_II, 0)
    assert np.abs(gradient_II).max() < 1e-4


@pytest.mark.parametrize("history", [False, True])
def test_vectors_of_both_sides_give_the_factorization_machine_of_the_whole_row(
    history: bool,
) -> None:
    """w0 + sum w_j x_j + sum over j < k of <v_j, v_k> x_j x_k, as Rendle 2010 has it."""
    inputs = ratings._blocks(SMALL, history)
    columns, rng = sum(entity.shape[1] for entity in inputs), np.random.default_rng(0)
    assert columns == sum(ratings._group_shapes(SMALL, history)) == (12 if history else 6)
    samples = [
        SimpleNamespace(
            w0=rng.normal(), w=rng.normal(size=columns), V=rng.normal(size=(columns, 2))
        )
        for _ in range(2)
    ]
    row = np.concatenate([inputs[0][[2]].toarray()[0], inputs[1][[1]].toarray()[0]])
    wanted = 0.0
    for one in samples:
        pairs = (one.V @ one.V.T) * np.outer(row, row)
        wanted += (one.w0 + one.w @ row + np.triu(pairs, 1).sum()) / len(samples)
    assert ratings._of_samples(samples, *inputs)[2, 1] == pytest.approx(wanted)


def test_a_peer_is_told_nothing_of_the_test_split(prepared: Path) -> None:
    given = Judge(prepared).training_rows()
    wanted = [
        json.loads((prepared / "schema.json").read_text())["rows"][s] for s in ("train", "val")
    ]
    assert [len(given.train.user), len(given.val.user)] == wanted


@pytest.mark.slow
def test_the_best_on_validation_is_read_on_test_once_and_a_second_call_fits_nothing(
    main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main("--peers", "ease,popularity", "--seeds", 3) == 0
    kept = finished.read(tmp_path / "rows.csv")
    trials = [row for row in kept if (row.peer, row.split) == ("ease", "val")]
    (tested,) = (row for row in kept if (row.peer, row.split) == ("ease", "test"))
    assert len(trials) == len(PEERS["ease"].settings)
    assert tested.settings == max(trials, key=lambda row: row.figures["ndcg"] or 0).settings
    text = (tmp_path / "table.md").read_text()
    assert "| EASE | 1 |" in text and "| popularity | 1 |" in text

    monkeypatch.setattr(accuracy, "run_peer", None)  # whoever calls it fails
    assert main("--peers", "ease,popularity") == 0
    assert finished.read(tmp_path / "rows.csv") == kept


def test_trials_on_other_data_choose_where_they_are_given_and_none_are_made_here(
    main: Main, tmp_path: Path
) -> None:
    """The larger NDCG has l2 = 200, which is neither the first nor the last of those tried here."""
    other = tmp_path / "other.csv"
    for l2, ndcg in ((30, 0.1), (200, 0.3)):
        trial = replace(row("ease", 0, ndcg=ndcg), split="val", settings=f'{{"l2": {l2}}}')
        finished.add(other, trial)
    assert main("--peers", "ease", "--chosen-on", other) == 0
    (kept,) = finished.read(tmp_path / "rows.csv")
    assert (kept.split, kept.settings) == ("test", '{"l2": 200}')
    assert "l2 200, chosen on other data" in (tmp_path / "table.md").read_text()


def test_a_peer_that_fails_is_named_and_the_others_go_on(
    main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = PEERS["als"].__class__("broken", "linear:nothing", ({},), by="ndcg")
    monkeypatch.setitem(accuracy.PEERS, "broken", broken)
    assert main("--peers", "broken,popularity") == 1
    assert "broken is left out: AttributeError" in capsys.readouterr().err
    assert [row.peer for row in finished.read(tmp_path / "rows.csv")] == ["popularity"] * 2


def test_a_run_of_ours_stands_beside_with_what_evaluate_says(
    main: Main, run: Path, tmp_path: Path
) -> None:
    for _ in range(2):  # the second time it is there
        assert main("--peers", "popularity", "--model", f"ours={run}") == 0
    (row,) = (row for row in finished.read(tmp_path / "rows.csv") if row.peer == "ours")
    assert row.figures["ndcg"] == pytest.approx(evaluate_ranking(run, "test")["ndcg"], abs=1e-6)
    assert (row.seed, row.minutes) == (0, None)
    assert "| **ours** | 1 |" in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--peers", "theirs"], "--peers ... popularity, ease, als, "),
        (["--seeds", "0"], "--seeds ... got 0"),
        (["--model", "runs/a"], "--model ... got 'runs/a'"),
        (["--peers", "als", "--peers-python", "none"], "make accuracy-venv"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_fitted(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(*words) == 2
    assert tells(capsys.readouterr().err, said)
    assert not (tmp_path / "rows.csv").exists()


def row(peer: str, seed: int, minutes: float | None = 2.0, **figures: Any) -> Row:
    every = {name: figures.get(name) for name in finished.FIGURES}
    return Row(peer, "test", seed, '{"l2": 30}', every, minutes, "numpy 2", "d", "c", "2026-11-22")


def test_a_cell_is_the_mean_and_standard_error_over_seeds_and_a_dash_where_there_is_none() -> None:
    """0.9, 0.8: mean 0.85, standard deviation 0.0707 with n - 1, / sqrt(2) = 0.05."""
    given = [row("ease", 0, auc=0.9), row("ease", 1, auc=0.8), row("mine", 0, None, mse=0.5)]
    lines = table.markdown(given).splitlines()
    assert lines[2].startswith("| **mine** | 1 | - | 0.5000 | - |") and lines[2].endswith("| - |")
    assert lines[3].startswith("| EASE | 2 | 0.8500 +- 0.0500 | - |") and lines[3].endswith("| 2 |")
    assert lines[-1] == "- EASE: l2 30, chosen on other data; numpy 2."
    trials = [replace(given[0], split="val", settings=f'{{"l2": {l2}}}') for l2 in (30, 40)]
    trials[1].figures["ndcg"] = -1.0
    assert table.markdown([*given, *trials]).endswith("- EASE: l2 30, best of 2; numpy 2.\n")


def test_the_chosen_trial_has_the_largest_ndcg_or_the_smallest_error() -> None:
    trials = [
        row("x", seed, ndcg=n, mse=m) for seed, n, m in ((0, 0.1, 2), (1, 0.3, 3), (2, 0.2, 1))
    ]
    assert finished.chosen(trials, PEERS["ease"]).seed == 1
    assert finished.chosen(trials, PEERS["svdpp"]).seed == 2
    without = replace(trials[0], figures={**trials[0].figures, "mse": None, "ndcg": None})
    assert finished.chosen([without, *trials], PEERS["svdpp"]).seed == 2  # not as an error of 0
    assert finished.chosen([without, *trials], PEERS["ease"]).seed == 1


@pytest.mark.parametrize(
    "page", sorted((ROOT / "research" / "results").glob("*-peers.md")), ids=str
)
def test_the_table_of_a_page_is_what_its_rows_give(page: Path) -> None:
    wanted = table.markdown(finished.read(page.with_suffix(".csv")))
    before, mark, rest = page.read_text(encoding="utf-8").partition(table.MARKS[0] + "\n")
    assert mark and rest.partition(table.MARKS[1])[0] == wanted
