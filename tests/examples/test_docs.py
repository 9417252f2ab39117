"""research/examples.md agrees with the code: options, commands, data sets, recipes, tables."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import examples.images.compare
import examples.images.table
import examples.images.train
import examples.moebert.compare
import examples.moebert.table
import examples.moebert.teacher
import examples.moebert.train
from examples.common.tables import read_rows
from examples.images.recipes import RECIPES
from examples.images.settings import PROTOCOLS
from examples.moebert.settings import TASKS

RESEARCH = Path(__file__).parents[2] / "research"
PAGE = (RESEARCH / "examples.md").read_text(encoding="utf-8")
IMAGES, LANGUAGE = (
    PAGE[PAGE.index("## Images") : PAGE.index("## Language")],
    PAGE[PAGE.index("## Language") :],
)
PARSERS: dict[str, argparse.ArgumentParser] = {
    "examples.images.train": examples.images.train.parser(),
    "examples.images.compare": examples.images.compare.parser(),
    "examples.moebert.teacher": examples.moebert.teacher.parser(),
    "examples.moebert.train": examples.moebert.train.parser(),
    "examples.moebert.compare": examples.moebert.compare.parser(),
}


@pytest.mark.parametrize(
    ("kind", "text", "others", "least"),
    [
        ("images", IMAGES, {"--clock"}, {"--data", "--router", "--k", "--seeds", "--lr"}),
        ("moebert", LANGUAGE, set(), {"--teacher", "--distill", "--balance", "--share"}),
    ],
)
def test_every_option_that_the_page_names_exists(
    kind: str, text: str, others: set[str], least: set[str]
) -> None:
    """`others`: of commands outside the example."""
    parsers = [parser for module, parser in PARSERS.items() if f".{kind}." in module]
    known = {o for parser in parsers for action in parser._actions for o in action.option_strings}
    named = set(re.findall(r"(?<![\w!-])--[a-z][\w-]*", text))
    assert named - known == others and least <= named


@pytest.mark.parametrize(("text", "count"), [(IMAGES, 7), (LANGUAGE, 7)])
def test_the_commands_of_the_page_are_understood(text: str, count: int) -> None:
    lines = text.replace("\\\n", " ").splitlines()
    words = [line.split("#")[0].split() for line in lines if line[:9] == "python -m"]
    assert len(words) == count
    for _, _, module, *options in words:
        if module in PARSERS and options:
            assert PARSERS[module].parse_args(options).data


def test_data_sets_recipes_and_tasks_are_those_of_the_code() -> None:
    rows = {line.split("`")[1]: line for line in IMAGES.splitlines() if re.match(r"\| `\w", line)}
    assert set(rows) == {*PROTOCOLS, *RECIPES}
    for name, protocol in PROTOCOLS.items():
        assert rows[name].endswith(f"| {protocol.experts}, {protocol.k} | {protocol.tasks} |")
    task_text = LANGUAGE[LANGUAGE.index("`--task`") :].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", task_text)) == set(TASKS)


@pytest.mark.parametrize(
    ("mark", "table", "source", "labels", "seeds"),
    [
        ("images", examples.images.table.table, "multi-mnist", examples.images.table.ORDER, 3),
        ("moebert", examples.moebert.table.table, "moebert-titles", ("hash", "moesart", "topk"), 5),
    ],
)
def test_a_table_is_what_its_csv_gives(
    mark: str, table: Callable[[Any], str], source: str, labels: tuple[str, ...], seeds: int
) -> None:
    rows = read_rows(RESEARCH / "results" / f"{source}.csv")
    shown = PAGE.partition(f"<!-- {mark} -->\n")[2].partition(f"<!-- /{mark} -->")[0]
    assert shown == table(rows)
    runs = sorted((row["label"], row["seed"]) for row in rows)
    assert runs == sorted((name, seed) for name in labels for seed in range(seeds))
    if mark == "images":
        protocol = {(r["lr"], r["precision"], r["k"], r["experts"]) for r in rows}
        assert protocol == {(1e-3, "bf16-mixed", k, 8) for k in (4, None)}
