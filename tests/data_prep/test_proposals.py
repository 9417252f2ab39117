"""`prepare` says which kind suits the labels better than the one that was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from data_prep import proposals
from recsys_moe import prepare
from recsys_moe.kinds.advice import skewness_of
from tests.conftest import Command

ROWS = 2000


def said(tmp_path: Path, labels: Any, kind: str = "regression") -> list[str]:
    log = pd.DataFrame({"u": np.arange(ROWS) % 40, "i": np.arange(ROWS) // 40, "y": labels})
    schema = prepare(log, user="u", item="i", tasks=[f"y:{kind}=y"], out=tmp_path / "data")
    return [*proposals.proposals(tmp_path / "data", schema)]


@pytest.mark.parametrize(
    ("make", "end"),
    [
        (lambda rng: rng.lognormal(3, 1.5, ROWS), "use duration"),
        (lambda rng: np.where(rng.random(ROWS) < 0.1, 0, rng.lognormal(3, 1.5, ROWS)), "for 0"),
        (lambda rng: rng.geometric(0.3, ROWS) * rng.geometric(0.3, ROWS) - 1, "use count"),
        (lambda rng: rng.geometric(0.3, ROWS) * rng.geometric(0.3, ROWS), "no numbers of things"),
        (lambda rng: rng.integers(1, 3, ROWS), "1 and 2: use binary, with 0 and 1 instead"),
        (lambda rng: rng.integers(0, 2, ROWS), "labels are 0 and 1: use binary"),
        (lambda rng: np.full(ROWS, 7.5), "all labels are 7.5 in float32: nothing to learn"),
    ],
)
def test_heavy_tails_counts_and_flags_get_a_kind(tmp_path: Path, make: Any, end: str) -> None:
    (line,) = said(tmp_path, make(np.random.default_rng(0)))
    assert line.startswith("y: ") and line.endswith(end)


@pytest.mark.parametrize(
    "make",
    [
        lambda rng: rng.integers(1, 6, ROWS),  # stars
        lambda rng: rng.normal(0, 100, ROWS),
        lambda rng: rng.beta(0.3, 6, ROWS).round(3),  # shares of 1, of skewness 3
        lambda rng: -rng.lognormal(3, 1.5, ROWS),  # duration has no labels below 0
    ],
)
def test_ratings_and_other_numbers_stay(tmp_path: Path, make: Any) -> None:
    assert said(tmp_path, make(np.random.default_rng(0))) == []


def test_missing_labels_and_few_rows_say_nothing(tmp_path: Path) -> None:
    """20 labels of a heavy tail among 2,000 rows."""
    labels = np.full(ROWS, np.nan)
    labels[::100] = np.random.default_rng(0).lognormal(3, 2, 20)
    assert said(tmp_path, labels) == []


def test_skewness_is_the_third_standardised_moment() -> None:
    """0, 0, 3: mean 1, deviations -1, -1, 2; (-1 - 1 + 8) / 3 = 2 over 2^1.5 = 2.828."""
    assert skewness_of(np.array([0.0, 0.0, 3.0])) == pytest.approx(2 / 2**1.5)


def test_rare_positives_are_told(tmp_path: Path) -> None:
    (line,) = said(tmp_path, np.arange(ROWS) % 400 == 0, "binary")
    assert line.startswith("y: 0.") and "% positive" in line


def test_the_command_prints_the_proposal_and_json_stays_json(
    tmp_path: Path, command: Command
) -> None:
    seconds = np.random.default_rng(0).lognormal(3, 1.5, ROWS).round(1) + 0.1
    frame = pd.DataFrame({"u": np.arange(ROWS) % 40, "i": np.arange(ROWS) // 40, "s": seconds})
    frame.to_csv(tmp_path / "log.csv", index=False)
    words = ["--input", tmp_path / "log.csv", "--user", "u", "--item", "i"]
    words += ["--task", "seconds:regression=s"]
    done = command("prepare", "table", *words, "--out", tmp_path / "a")
    assert "  seconds: skewness " in done.out and done.out.rstrip().endswith("use duration")
    plain = command("prepare", "table", *words, "--out", tmp_path / "b", "--json").out
    assert plain.startswith("{") and "skewness" not in plain


def test_one_positive_in_100_is_not_rare(tmp_path: Path) -> None:
    assert said(tmp_path, np.arange(ROWS) % 100 == 0, "binary") == []
