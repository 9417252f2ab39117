"""The study of defaults: its contenders are configurations, and finished rows are not repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from recsys_moe.config.files import read_config_file
from recsys_moe.config.settings import parse_config
from recsys_moe.schema import Schema
from research import defaults
from research.defaults_left_out import left_out, table
from research.defaults_logs import LOGS, MADE, prepared


@pytest.mark.parametrize("contender", ["automatic", "fixed", "recipe", *defaults.OTHERS])
def test_each_contender_is_a_configuration(contender: str, prepared: Path) -> None:
    config = defaults.config_of(contender, "ml-1m", Schema.load(prepared), 3)
    assert config.trainer.seed == 3
    if contender == "fixed":
        assert config == parse_config({"trainer": {"seed": 3}})
    if contender == "recipe":
        recipe = parse_config(read_config_file("movielens_1m_best"))
        assert config.model == recipe.model and config.optim == recipe.optim


def test_a_finished_row_is_found_again(tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    assert defaults.finished(rows) == set()
    for seed in (0, 1):
        defaults.append({"log": "books", "contender": "fixed", "seed": seed, "mse": "1"}, rows)
    assert defaults.finished(rows) == {("books", "fixed", "0"), ("books", "fixed", "1")}
    assert rows.read_text().count("contender") == 1


def test_every_log_made_up_is_prepared() -> None:
    assert set(MADE) <= set(LOGS)
    assert all(words[0] in ("synthetic", "table", "books", "movielens") for words in LOGS.values())


@pytest.mark.parametrize("log", ["heavy-tails", "drift-old", "synthetic-3k"])
def test_a_log_of_the_study_is_prepared_once(log: str, tmp_path: Path) -> None:
    folder = prepared(log, tmp_path, None)
    text = (folder / "schema.json").read_bytes()
    assert prepared(log, tmp_path, None) == folder and (folder / "schema.json").read_bytes() == text


def test_a_log_is_judged_by_what_the_others_choose() -> None:
    """Without log b, "wide" is 10% better (0.9 / 1.0); on b it is 20% worse (1.2 / 1.0)."""
    losses = {
        ("a", "automatic"): 1.0,
        ("a", "wide"): 0.9,
        ("b", "automatic"): 1.0,
        ("b", "wide"): 1.2,
    }
    rows = [{"log": a, "contender": c, "loss": str(x)} for (a, c), x in losses.items()]
    found = {one.log: one for one in left_out(rows)}
    assert found["b"].chosen == "wide" and found["b"].worse == pytest.approx(0.2)
    assert found["a"].chosen == "automatic" and found["a"].worse == 0.0
    assert "| b | wide | 1 | +20.00% | 1 |" in table(found.values())
