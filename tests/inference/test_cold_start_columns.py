"""ColdStart on the command line: options of `recommend`, columns of `predict`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import torch

from recsys_moe.errors import ConfigError
from recsys_moe.inference.cold_start.columns import with_columns
from recsys_moe.inference.cold_start.options import parse_features, parse_history, unused_lines
from recsys_moe.inference.predictor import ColdUser, Predictor
from tests.conftest import Command, tells


@pytest.fixture(scope="module")
def predictor(featured_run: Path) -> Predictor:
    return Predictor.load(featured_run)


def test_recommend_ranks_for_features_and_a_history(
    command: Command, featured_run: Path, predictor: Predictor
) -> None:
    given = ("--history", "3,5=4,nothing", "--features", "age=20", "--features", "job=job 1")
    done = command("recommend", featured_run, *given, "--k", 4, "--exclude-seen", "--json")
    answer = json.loads(done.out)
    features, history = {"age": 20, "job": "job 1"}, {3: None, 5: 4.0}
    [expected] = predictor.recommend(history=history, features=features, k=4, exclude_seen=True)
    assert [entry["item"] for entry in answer["items"]] == [entry.item for entry in expected]
    for got, entry in zip(answer["items"], expected, strict=True):
        assert got["watch"] == pytest.approx(entry.scores["watch"], abs=1e-5)
    assert answer["user"] is None and answer["unseen_user"]
    assert answer["unused"] == {"categories": {}, "items": ["nothing"], "repeated": []}


def test_recommend_names_what_it_does_not_know(
    command: Command, featured_run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    given = ("--history", "a,b", "--features", "job=juggler")
    done = command("recommend", featured_run, *given)
    assert done.exit_code == 0 and "rank" in done.out
    assert tells(caplog.text, "job: ... 'juggler'")
    assert "unknown items of the history: a, b" in caplog.text


def test_a_history_comes_from_a_file_too(
    command: Command, featured_run: Path, predictor: Predictor, tmp_path: Path
) -> None:
    (tmp_path / "items.csv").write_text("item\n" + "3\n5\n" * 50_000)
    done = command("recommend", featured_run, "--history", tmp_path / "items.csv", "--json")
    [expected] = predictor.recommend(history=[3, 5])
    items = [entry["item"] for entry in json.loads(done.out)["items"]]
    assert items == [entry.item for entry in expected]


@pytest.mark.parametrize(
    ("code", "options", "message"),
    [
        (
            2,
            ["--user", "1", "--history", "3"],
            "pass one of --user ID, --users FILE or, for a new user",
        ),
        (2, ["--features", "age"], "--features ... NAME=VALUE ... got 'age'"),
        (2, ["--features", "age=1", "--features", "age=2"], "--features ... 'age' once"),
        (2, ["--history", "3,,5"], "--history ... got '3,,5'"),
        (3, ["--features", "age=young"], "'age' ... got 'young'"),
        (3, ["--features", "ages=3"], "'ages' ... 'age'"),
        (3, ["--history", "3=77"], "rating of item 3 ... 1..5, got 77.0"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    code: int, options: list[str], message: str, command: Command, featured_run: Path
) -> None:
    assert tells(command.fails(code, "recommend", featured_run, *options), message)


def test_options_say_what_they_look_like() -> None:
    assert parse_features(["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    assert parse_history("1, 2") == ["1", "2"]
    assert parse_history("1=5,x=y,2,1=3") == {"1": 5.0, "x=y": None, "2": None}
    assert parse_history(None) == []
    with pytest.raises(ConfigError, match="must be NAME=VALUE"):
        parse_features(["=3"])


def predicted(command: Command, model: Path, pairs: dict[str, list[Any]], out: Path) -> Any:
    pd.DataFrame(pairs).to_csv(out / "pairs.csv", index=False)
    words = ("--input", out / "pairs.csv", "--output", out / "scores.csv", "--overwrite", "--json")
    done = command("predict", model, *words)
    assert done.exit_code == 0, done.err
    return pd.read_csv(out / "scores.csv"), json.loads(done.out)


PAIRS: dict[str, list[Any]] = {
    "user": ["1", "new", "1", "new 2", "new"],
    "item": ["3", "3", "new", "new 2", "new 3"],
    "age": ["99", "20", "", "", "40.5"],
    "job": ["job 1", "job 2", "job 0", "mason", ""],
    "genres": ["genre 1", "", "genre 1|genre 2", "genre 0", "opera"],
    "colour": ["red"] * 5,
}


def test_predict_reads_features_of_unseen_ids_from_columns_of_their_names(
    command: Command, featured_run: Path, predictor: Predictor, tmp_path: Path
) -> None:
    scores, counts = predicted(command, featured_run, PAIRS, tmp_path)
    whom = [
        *(1, ColdUser({"age": 20, "job": "job 2"}), 1),
        *(ColdUser({"job": "mason"}), ColdUser({"age": 40.5})),
    ]
    genres = (["genre 1", "genre 2"], ["genre 0"], ["opera"])
    expected = predictor.score(whom, [3, 3, *(ColdUser({"genres": g}) for g in genres)])
    for task in ("watch", "rating"):
        assert scores[task].tolist() == pytest.approx(expected.tasks[task].tolist(), abs=1e-5)
    assert scores["unseen_user"].tolist() == [False, True, False, True, True]
    assert scores["colour"].tolist() == ["red"] * 5
    # mason, opera; the job and age of user 1, whom training has seen, are not looked at
    assert counts == {"rows": 5, "unseen_user": 3, "unseen_item": 3, "unknown_category": 2}


def test_predict_reads_histories_of_unseen_users(
    command: Command, featured_run: Path, predictor: Predictor, tmp_path: Path
) -> None:
    cells = ["3=5|4", "3 | 4", "", "977|3=1|3=5|4", "3"]
    pairs = {"user": ["new", "new 2", "new 3", "new 4", "1"], "item": ["7"] * 5, "history": cells}
    scores, counts = predicted(command, featured_run, pairs, tmp_path)
    given: list[Any] = [{3: 5.0, 4: None}, [3, 4], [], {3: 1.0, 4: None}]
    expected = predictor.score([*(ColdUser(history=h) for h in given), 1], [7] * 5)
    for task in ("watch", "rating"):
        assert scores[task].tolist() == pytest.approx(expected.tasks[task].tolist(), abs=1e-5)
    assert counts["unknown_history"] == 1  # 977; user 1's is not looked at
    lists = pa.table({"user": ["new"], "item": ["7"], "history": [[3, 4]]})
    resolved, _ = with_columns(predictor, "user", lists["user"], lists)
    assert torch.equal(predictor.score(resolved, [7]).tasks["watch"], expected.tasks["watch"][1:2])


def test_repeated_items_of_a_history_are_named(predictor: Predictor) -> None:
    unused = predictor.unused(ColdUser(history=[3, "977", "3", 4, 3.0, "977"]))
    assert (unused.items, unused.repeated) == (["977", "977"], ["3"])
    assert "ignored repeated items of the history: 3" in unused_lines(unused)
    assert not predictor.unused(ColdUser(history=[3, 4]))


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        ("age", "old", "'age' ... got 'old'"),
        ("history", "3||4", "'history' ... '|' ... got '3||4'"),
        ("history", "3=9", "rating of item 3 ... 1..5, got 9.0"),
    ],
)
def test_predict_refuses_an_invalid_cell_of_an_unknown_user_by_its_row(
    column: str, cell: str, message: str, command: Command, featured_run: Path, tmp_path: Path
) -> None:
    pairs = {"user": ["1", "new"], "item": ["7"] * 2, column: [cell, cell]}
    pd.DataFrame(pairs).to_csv(tmp_path / "pairs.csv", index=False)
    words = ("--input", tmp_path / "pairs.csv", "--output", tmp_path / "scores.csv")
    line = command.fails(3, "predict", featured_run, *words)
    assert tells(line, f"pairs.csv: row 2: ... {message}")
    assert not (tmp_path / "scores.csv").exists()
