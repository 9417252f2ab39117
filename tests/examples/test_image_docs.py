"""docs/examples.md tells the truth about the image studies: options, data sets, recipes."""

from __future__ import annotations

import re
from pathlib import Path

from examples.images import compare, train
from examples.images.recipes import RECIPES
from examples.images.settings import PROTOCOLS

PAGE = (Path(__file__).parents[2] / "docs" / "examples.md").read_text(encoding="utf-8")
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
    words = [line.split("#")[0].split() for line in TEXT.splitlines() if line[:9] == "python -m"]
    assert len(words) == 3
    for _, _, module, *options in words:
        known = train.parser() if module.endswith("train") else compare.parser()
        assert not options or known.parse_args(options).data == Path("DIR")
