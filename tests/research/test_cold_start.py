"""research/cold_start.py: what is hidden is hidden, what is given is told, finished rows stay."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from research import cold_start
from tests.data_prep.samples import lines


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """MovieLens-100K's layout: 30 users with 10 of 25 items each, of two genres.

    Users are 1 to 30, items 10 to 34: a number alone says neither.
    """
    draw = random.Random(0)
    pairs = [(u, i) for u in range(1, 31) for i in sorted(draw.sample(range(10, 35), 10))]
    ratings = [f"{u}\t{i}\t{1 + (u + i) % 5}\t{n}" for n, (u, i) in enumerate(pairs)]
    films = [f"{i}|Film {i} ({1960 + i % 40})||||{i % 2}|{1 - i % 2}" for i in range(10, 35)]
    lines(tmp_path / "raw" / "u.data", ratings)
    lines(tmp_path / "raw" / "u.item", films)
    lines(tmp_path / "raw" / "u.user", [f"{u}|{20 + u}|M|writer|01110" for u in range(1, 31)])
    lines(tmp_path / "raw" / "u.genre", ["Action|0", "Drama|1", ""])
    return tmp_path / "raw"


def tables(raw: Path, tmp_path: Path) -> Any:
    (tmp_path / "scratch").mkdir()
    return cold_start.prepared(raw, tmp_path / "scratch", 0)


def options(raw: Path, file: Path, *words: str) -> Any:
    return cold_start.parse(["--ratings", str(raw), "--csv", str(file), *words])


def test_hidden_items_are_in_no_split_and_all_their_rows_are_scored(
    raw: Path, tmp_path: Path
) -> None:
    splits, items = tables(raw, tmp_path)
    asked = options(raw, tmp_path / "a.csv", "--share", "0.2")
    kept, cold, given = cold_start.hide("items", splits, items, options=asked, seed=1)
    assert len(given) == 5  # a fifth of 25
    assert not any(set(rows["item"]) & set(given) for rows in kept.values())
    assert sum(map(len, [*kept.values(), cold])) == sum(map(len, splits.values())) == 600
    assert set(cold["watch"]) == {0, 1}  # negatives too, as they were drawn
    assert cold["rating"].notna().equals(cold["watch"] == 1)
    item, told = next(iter(given.items()))
    assert told.features == {"genres": ["Drama", "Action"][item % 2], "year": 1960 + item % 40}


def test_hidden_users_give_five_items_whose_rows_are_not_scored(raw: Path, tmp_path: Path) -> None:
    splits, items = tables(raw, tmp_path)
    asked = options(raw, tmp_path / "a.csv")
    kept, cold, given = cold_start.hide("users", splits, items, options=asked, seed=1)
    assert len(given) == 3  # a tenth of 30
    assert not any(set(rows["user"]) & set(given) for rows in kept.values())
    for user, told in given.items():
        rows = cold[cold["user"] == user]
        assert len(told.history) == 5 and len(rows) == 20 - 5
        assert not set(told.history) & set(rows["item"])
        assert all(stars == 1 + (user + item) % 5 for item, stars in told.history.items())


def test_finished_rows_stay_and_the_same_command_goes_on_behind_them(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of other options stay too, and are in no mean."""
    made: list[tuple[str, int, int]] = []

    def measure(hidden: str, seed: int, asked: Any) -> dict[str, float]:
        made.append((hidden, seed, asked.epochs))
        return {"alone_auc": 0.5, "given_auc": 0.6 + seed, "alone_mse": 1.0, "given_mse": 1.1}

    monkeypatch.setattr(cold_start, "measure", measure)
    line = ["--ratings", "raw", "--csv", str(tmp_path / "a.csv")]
    for words in (["--seeds=1"], ["--seeds=1", "--epochs=3"], ["--seeds=2", "--hide=items"]):
        cold_start.main([*line, *words, "--json"])
    both = ["items", "users"]
    wanted = [*((hidden, 0, 60) for hidden in both), *((hidden, 0, 3) for hidden in both)]
    assert made == [*wanted, ("items", 1, 60)]
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [run["given_auc"] for run in found["runs"]] == [0.6, 1.6]
    assert len(pd.read_csv(tmp_path / "a.csv")) == 5
    # The mean of 0.1 and 1.1, with errors of 0.5; an MSE that rises is none.
    assert found["gains"]["items, watch AUC"]["gain"] == pytest.approx(0.6)
    assert [target["met"] for target in found["targets"]] == [False, False]


@pytest.mark.slow
@pytest.mark.parametrize("hidden", ["items", "users"])
def test_one_model_scores_hidden_rows_in_both_ways(
    raw: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], hidden: str
) -> None:
    words = ["--config", "quickstart", "--epochs", "1", "--seeds", "1", "--hide", hidden]
    cold_start.main(["--ratings", str(raw), "--csv", str(tmp_path / "a.csv"), *words])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["gains"][f"{hidden}, watch AUC"]["error"] is None and not found["targets"]
    [run] = pd.read_csv(tmp_path / "a.csv").to_dict("records")
    assert run["given_mse"] != run["alone_mse"]
    figures = [run[f"{way}_{name}"] for way in ("given", "alone") for name in ("auc", "mse")]
    assert np.isfinite(figures).all()
