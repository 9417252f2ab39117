"""`evaluate --ranking`, as a user runs it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recsys_moe.cli.evaluation_text import ranking_lines
from recsys_moe.cli.inference import warn_of_lists
from recsys_moe.config.settings import parse_config
from recsys_moe.train.fit import fit
from tests.conftest import TINY_MODEL, Command, tells


@pytest.fixture
def own_run(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


def test_the_figures_are_printed_and_kept_in_the_run(own_run: Path, command: Command) -> None:
    done = command("evaluate", own_run, "--ranking", "--k", 5, "--json")
    ranking = json.loads(done.out)["ranking"]
    assert (ranking["k"], ranking["task"], ranking["items"]) == (5, "watch", 40)
    low, high = ranking["intervals"]["ndcg"]
    assert 0 < low < ranking["ndcg"] < high < 1
    kept = own_run / "evaluation" / "test.json"
    assert json.loads(kept.read_text())["ranking"] == ranking
    command("evaluate", own_run)  # the same model and rows: what was found of them still holds
    assert json.loads(kept.read_text())["ranking"] == ranking
    lines = command("evaluate", own_run, "--ranking", "--relevant", "rating>=4").out.splitlines()
    table = lines[lines.index("") + 1 :]
    assert "with rating>=4, all 40 items ranked except positives of train and val" in table[0]
    names = ["NDCG@10", "recall@10", "MRR@10", "hit rate@10", "GAUC", "coverage", "mean popularity"]
    assert [line[2:17].strip() for line in table[2:]] == names


@pytest.mark.parametrize(("own", "warnings"), [(0.19, 1), (0.2, 1), (0.21, 0), (None, 0)])
def test_lists_that_do_not_beat_popularity_are_warned_of(
    own: float | None, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    ranking = {"task": "watch", "k": 5, "ndcg": own, "baselines": {"popularity": {"ndcg": 0.2}}}
    warn_of_lists({"split": "test"}, ranking)
    told = [line for line in caplog.messages if line.startswith("test: watch NDCG@5")]
    assert len(told) == warnings


def test_evaluate_warns_of_its_lists_as_it_does_of_metrics(
    own_run: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    found = json.loads(command("evaluate", own_run, "--ranking", "--json").out)["ranking"]
    is_behind = found["ndcg"] <= found["baselines"]["popularity"]["ndcg"]
    assert ("NDCG@10" in caplog.text) == is_behind
    behind = {**found, "ndcg": 0.0}
    monkeypatch.setattr("recsys_moe.cli.inference._ranked", lambda *given: behind)
    command("evaluate", own_run, "--ranking")
    assert "test: watch NDCG@10 0.0000 does not beat the popularity" in caplog.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--ranking", "--k", 41], "--k ... 1..40 ... got 41"),
        (["--ranking", "--k", 0], "--k ... 1..40 ... got 0"),
        (["--ranking", "--task", "rating"], "--ranking ... got --task rating"),
        (["--ranking", "--relevant", "rating"], "--relevant must be TASK>=NUMBER, e.g. rating>=4"),
        (["--ranking", "--relevant", "ratng>=4"], "'ratng' ... 'rating'"),
        (["--k", 5], "--k ... --ranking"),
    ],
)
def test_what_cannot_be_ranked_is_refused_in_one_line(
    run: Path, command: Command, options: list[object], words: str
) -> None:
    assert tells(command.fails(2, "evaluate", run, *options), words)


def test_a_bound_is_any_number_that_some_row_reaches(own_run: Path, command: Command) -> None:
    ask = ["evaluate", own_run, "--ranking", "--json", "--relevant"]
    plain, short = (json.loads(command(*ask, f"rating>={n}").out)["ranking"] for n in ("0.5", ".5"))
    assert plain == {**short, "at_least": "rating>=0.5"}
    assert "ask for less than 9, or evaluate" in command.fails(3, *ask, "rating>=9")


def test_a_split_without_positives_is_invalid_data(
    run: Path, prepared: Path, tmp_path: Path, command: Command
) -> None:
    data = Path(shutil.copytree(prepared, tmp_path / "data"))
    for part in (data / "test").glob("*.parquet"):
        table = pq.read_table(part)
        zeros = pa.array([0.0] * table.num_rows, pa.float32())
        place = table.column_names.index("watch")
        pq.write_table(table.set_column(place, "watch", zeros), part)
    line = command.fails(3, "evaluate", run, "--data", data, "--ranking")
    assert tells(line, f"{data}/test ... no relevant item")


def test_a_model_without_a_binary_task_is_not_ranked(tmp_path: Path, command: Command) -> None:
    table = tmp_path / "ratings.csv"
    rows = [f"{u},{i},{1 + (u * i) % 5}" for u in range(12) for i in range(12)]
    table.write_text("\n".join(["u,i,stars", *rows]))
    columns = ("--user", "u", "--item", "i", "--task", "rating:regression=stars")
    command("prepare", "table", "--input", table, *columns, "--out", tmp_path / "data")
    config = {"model": TINY_MODEL, "trainer": {"max_epochs": 1, "batch_size": 64}}
    fit(parse_config(config), tmp_path / "data", tmp_path / "run")
    line = command.fails(2, "evaluate", tmp_path / "run", "--ranking")
    assert tells(line, "--ranking ... binary ... got the model's rating")


def test_rows_that_cannot_be_ranked_are_said_to_be_left_out(
    own_run: Path, command: Command
) -> None:
    ranking = json.loads(command("evaluate", own_run, "--ranking", "--json").out)["ranking"]
    assert not [line for line in ranking_lines(ranking) if "left out" in line]
    ranking |= {"relevant_of_unknown_users": 7, "relevant_excluded": 2}
    ranking["segments"]["cold_items"] = {"users": 3, "ndcg": 0.5, "recall": None}
    assert list(ranking_lines(ranking))[-3:] == [
        "  cold items (3 users): NDCG@10 0.5000, recall@10 -",
        "  left out: 7 relevant rows of unknown users",
        "  left out: 2 relevant rows whose item the user had interacted with before",
    ]
