"""The study of defaults: its contenders are configurations, and finished rows are not repeated."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recsys_moe.config.files import read_config_file
from recsys_moe.config.settings import parse_config
from recsys_moe.schema import Schema
from research import defaults
from research.defaults_ahead import standing, word
from research.defaults_ahead import table as ahead_table
from research.defaults_judge import of_auc, of_mse
from research.defaults_left_out import left_out, table
from research.defaults_logs import FEW_LOGS, FROM_RAW, LOGS, MADE, OWN_LOGS, PLAIN_LOGS, prepared
from research.defaults_trials import table as trials_table
from research.defaults_trials import tuned

OF_ALL = ["automatic", "fixed", "recipe", "draw-0", "as if sampled", *defaults.OTHERS]


@pytest.mark.parametrize("contender", OF_ALL)
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
    parts = (LOGS, FEW_LOGS, OWN_LOGS, PLAIN_LOGS)
    every = {log: words for part in parts for log, words in part.items()}
    assert {*MADE, *FROM_RAW} <= set(every) and len(every) == sum(map(len, parts))
    assert all(words[0] in ("synthetic", "table", "books", "movielens") for words in every.values())


@pytest.mark.parametrize("log", ["heavy-tails", "drift-old", "synthetic-3k", "drift-shown-time"])
def test_a_log_of_the_study_is_prepared_once(log: str, tmp_path: Path) -> None:
    folder = prepared(log, tmp_path, None)
    text = (folder / "schema.json").read_bytes()
    assert prepared(log, tmp_path, None) == folder and (folder / "schema.json").read_bytes() == text


def test_auc_errors_are_those_of_delong_by_hand() -> None:
    """Positives 3 and 1 over negatives 2 and 0 have placements 1 and 1/2: AUC 3/4. The other score,
    the same for all, has 1/2 everywhere. Differences 1/2, 0 and, by negative, 0, 1/2: each variance
    is 1/8 over 2 rows, so the error is (1/16 + 1/16) ** .5."""
    own, label = np.array([3.0, 1.0, 2.0, 0.0]), np.array([1, 1, 0, 0])
    found = of_auc(own, label, np.zeros(4))
    assert found == pytest.approx((0.75, 0.5, 0.25, 0.125**0.5))


def test_mse_errors_are_those_of_paired_rows() -> None:
    """Squared errors 0, 0 beside 1, 9: differences 1 and 9, of deviation 32 ** .5 over 2 rows."""
    label = np.array([1.0, 3.0])
    assert of_mse(label, label, np.zeros(2)) == pytest.approx((0.0, 5.0, 5.0, 4.0))


def test_ahead_level_and_behind_are_by_two_standard_errors_over_rows_and_seeds() -> None:
    """Seeds .6 and .8 over .5: .2 on average; variance .02 / 2 = .01 and .03 ** 2 of the rows."""
    seeds = [{"auc": own, "popularity_auc": ".5", "auc_error": ".03"} for own in (".6", ".8")]
    by, error = standing(seeds, "auc")
    assert (by, error) == pytest.approx((0.2, (0.01 + 0.0009) ** 0.5))
    assert standing([{"mse": "1", "user_item_mse": "3", "mse_error": "1"}], "mse") == (2.0, 1.0)
    assert [word(by, 1.0) for by in (2.0, 1.9, -2.0)] == ["ahead", "level", "behind"]
    rows = [{"log": "a", "contender": "automatic", **one} for one in seeds]
    assert "| a | automatic | 2 | 0.7000 (0.5000) +0.2000 +- 0.1044, level |" in ahead_table(
        rows, ["automatic"]
    )


def test_validation_chooses_the_trial_that_test_judges() -> None:
    """The lowest validation loss, .4, has a test loss of .8: automatic, at .88, is 10% worse."""
    losses = {"automatic": (".5", ".88"), "draw-0": (".4", ".8"), "draw-1": (".6", ".7")}
    rows = [
        {"log": "a", "contender": name, "val_loss": val, "loss": loss}
        for name, (val, loss) in losses.items()
    ]
    (found,) = tuned(rows)
    assert (found.chosen, found.trials) == ("draw-0", 2)
    assert found.worse == pytest.approx(0.1)
    assert "| a | 2 | draw-0 | 0.8000 | 0.8800 | +10.0% |" in trials_table([found])
    assert not [*tuned(rows[1:])]


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
