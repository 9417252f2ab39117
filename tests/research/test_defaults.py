"""The study of defaults: its contenders are configurations, and finished rows are not repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from recsys_moe.config.files import read_config_file
from recsys_moe.config.settings import parse_config
from recsys_moe.schema import Schema
from research import defaults


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
    assert set(defaults.MADE) <= set(defaults.LOGS)
    assert all(
        words[0] in ("synthetic", "table", "books", "movielens") for words in defaults.LOGS.values()
    )
