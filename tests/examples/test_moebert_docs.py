"""research/examples.md tells the truth about the language example: options, tasks, its table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples.common.tables import read_rows
from examples.moebert import compare, teacher, train
from examples.moebert.settings import TASKS, student
from examples.moebert.table import table

RESEARCH = Path(__file__).parents[2] / "research"
PAGE = (RESEARCH / "examples.md").read_text(encoding="utf-8")
TEXT = PAGE[PAGE.index("## Language") :]
PARSERS = {"teacher": teacher.parser(), "train": train.parser(), "compare": compare.parser()}


def test_every_option_that_the_page_names_exists() -> None:
    known = {
        option
        for parser in PARSERS.values()
        for action in parser._actions
        for option in action.option_strings
    }
    named = set(re.findall(r"(?<![\w!-])--[a-z][\w-]*", TEXT))
    assert named <= known
    assert {"--teacher", "--distill", "--trimmed-lasso", "--balance", "--share"} <= named


def test_the_commands_of_the_page_are_understood() -> None:
    words = [line.split("#")[0].split() for line in TEXT.splitlines() if line[:9] == "python -m"]
    assert len(words) == 7
    for _, _, module, *options in words:
        if module != "examples.moebert.table":
            assert PARSERS[module.rpartition(".")[2]].parse_args(options).data


def test_the_tasks_are_those_of_the_code() -> None:
    named = set(re.findall(r"`(\w+)`", TEXT[TEXT.index("`--task`") :].split("\n\n")[0]))
    assert named == set(TASKS)


def test_the_defaults_are_those_of_the_page() -> None:
    own = student("titles")
    assert (own.k, own.experts, own.distill, own.balance, own.trimmed_lasso) == (2, 4, 5, 0, 0)
    assert own.router_settings == {"temperature": 1.0}


def test_the_table_is_what_its_csv_gives() -> None:
    rows = read_rows(RESEARCH / "results" / "moebert-titles.csv")
    shown = PAGE.partition("<!-- moebert -->\n")[2].partition("<!-- /moebert -->")[0]
    assert shown == table(rows)
    runs = sorted((row["label"], row["seed"]) for row in rows)
    assert runs == [(name, seed) for name in ("hash", "moesart", "topk") for seed in range(5)]


def test_a_study_names_an_unknown_router_before_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--routers", "topk,toppk"]
    assert compare.main(words) == 2
    assert "toppk" in capsys.readouterr().err and not (tmp_path / "out").exists()
