"""`fit` without settings beats every baseline after a few epochs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests import logs
from tests.conftest import Command

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def ratings_to_10(folder: Path) -> list[object]:
    """Positives alone, and how they were rated."""
    logs.ratings_to_10(folder / "log.csv")
    columns = ["--user", "member", "--item", "title", "--task", "stars:regression=stars"]
    drawn = ["--task", "watch:binary", "--negatives", "per-user"]
    return ["table", "--input", folder / "log.csv", *columns, *drawn]


def rare_clicks(folder: Path) -> list[object]:
    logs.rare_clicks(folder / "log.csv")
    share = pd.read_csv(folder / "log.csv")["clicked"].mean()
    assert 0.015 < share < 0.025
    columns = ["--user", "visitor", "--item", "page", "--task", "click:binary=clicked"]
    return ["table", "--input", folder / "log.csv", *columns]


def synthetic(folder: Path) -> list[object]:
    return ["synthetic"]


def real(*words: str) -> Callable[[Path], list[object]]:
    def source(folder: Path) -> list[object]:
        data = os.environ.get("RECSYS_MOE_DATA")
        if not data:
            pytest.skip("RECSYS_MOE_DATA is not set")
        return [*words, "--source", Path(data) / folder_of[words[0]]]

    folder_of = {"movielens": "ml-100k", "books": "book-crossing"}
    source.__name__ = words[0]
    return source


SOURCES = [
    *((ratings_to_10, 9), (rare_clicks, 1), (synthetic, 3)),
    *((real("movielens", "--variant", "100k"), 3), (real("books"), 2)),
]
"""Each with as many epochs as put it ahead; research/results/first-models.md has where fits end."""


@pytest.mark.parametrize(
    ("source", "epochs"), SOURCES, ids=[source.__name__ for source, _ in SOURCES]
)
def test_a_first_model_beats_every_baseline(
    source: Callable[[Path], list[object]], epochs: int, tmp_path: Path, command: Command
) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    assert command("prepare", *source(tmp_path), "--out", data).exit_code == 0
    fitted = command("fit", "--data", data, "--out", run, "--max-epochs", epochs)
    assert fitted.exit_code == 0, fitted.err
    tasks = json.loads((data / "schema.json").read_text())["tasks"]
    assert fitted.out.count("baseline: ") == len(tasks) + 1  # and for the lists
    result = json.loads((run / "evaluation" / "val.json").read_text())
    for task, named in result["baselines"].items():
        own = result["tasks"][task]
        for metrics in named.values():
            for metric, bound in metrics.items():
                ahead = own[metric] > bound if metric == "auc" else own[metric] < bound
                assert ahead, (task, metric, own[metric], bound)
