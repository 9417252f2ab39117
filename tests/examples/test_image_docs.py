"""research/examples.md tells the truth about the image studies: options, data sets, recipes."""

from __future__ import annotations

import re
from pathlib import Path

from examples.common.tables import read_rows
from examples.images import compare, train
from examples.images.recipes import RECIPES
from examples.images.settings import PROTOCOLS
from examples.images.table import ORDER, table

RESEARCH = Path(__file__).parents[2] / "research"
PAGE = (RESEARCH / "examples.md").read_text(encoding="utf-8")
TEXT = PAGE[PAGE.index("## Images") : PAGE.index("## Language")]


def test_every_option_that_the_page_names_exists() -> None:
    known = {
        option
        for parser in (train.parser(), compare.parser())
        for action in parser._actions
        for option in action.option_strings
    }
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", TEXT))
    assert named - known == {"--clock"}  # of the benchmark
    assert {"--data", "--router", "--k", "--seeds", "--tasks", "--lr"} <= named


def test_data_sets_and_recipes_are_those_of_the_code() -> None:
    rows = {line.split("`")[1]: line for line in TEXT.splitlines() if re.match(r"\| `\w", line)}
    assert set(rows) == {*PROTOCOLS, *RECIPES}
    for name, protocol in PROTOCOLS.items():
        assert rows[name].endswith(f"| {protocol.experts}, {protocol.k} | {protocol.tasks} |")


def test_the_commands_of_the_page_are_understood() -> None:
    lines = TEXT.replace("\\\n", " ").splitlines()
    words = [line.split("#")[0].split() for line in lines if line[:9] == "python -m"]
    assert len(words) == 7
    for _, _, module, *options in words:
        known = train.parser() if module.endswith("train") else compare.parser()
        if module.startswith("examples.") and not module.endswith("table") and options:
            assert known.parse_args(options).data == Path("DIR")


def test_the_table_is_what_its_csv_gives() -> None:
    rows = read_rows(RESEARCH / "results" / "multi-mnist.csv")
    shown = PAGE.partition("<!-- images -->\n")[2].partition("<!-- /images -->")[0]
    assert shown == table(rows)
    runs = sorted((row["label"], row["seed"]) for row in rows)
    assert runs == sorted((name, seed) for name in ORDER for seed in range(3))
    protocol = {(r["lr"], r["precision"], r["k"], r["experts"]) for r in rows}
    assert protocol == {(1e-3, "bf16-mixed", k, 8) for k in (4, None)}
