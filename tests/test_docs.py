"""The page on routers tells the truth: keys, defaults, sizes and refusals are the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from recsys_moe.config.overview import overviews
from recsys_moe.config.settings import PenaltyConfig, parse_config
from recsys_moe.routers import ROUTERS

TEXT = (Path(__file__).parents[1] / "docs/reference/routers.md").read_text(encoding="utf-8")


def section(name: str) -> str:
    found = re.search(rf"^### `{name}`\n(.*?)(?=^##)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"the page has no section for {name}"
    return found.group(1)


def rows(title: str) -> dict[str, list[str]]:
    """Cells of the table whose header contains `title`, by the router in the first column."""
    lines = TEXT[TEXT.index(title) :].split("\n\n")[0].splitlines()[2:]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {cells[0].strip("`"): cells[1:] for cells in table}


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_every_router_has_a_section_with_all_its_keys_and_their_defaults(name: str) -> None:
    text = " ".join(section(name).split())
    documented = dict(re.findall(r"`(\w+)` = `([^`]*)`", text))
    defaults = ROUTERS[name].Config().model_dump(mode="json", exclude={"name"})
    assert {key: yaml.safe_load(value) for key, value in documented.items()} == defaults


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_every_section_answers_the_same_questions(name: str) -> None:
    questions = ("Paper", "Differs", "Keys", "Parameters", "Cost", "Pick it", "Inference")
    assert [word for word in questions if f"**{word}" not in section(name)] == []


def test_the_summary_table_has_the_sizes_and_the_batch_dependence_of_the_code() -> None:
    table = rows("| router | experts in training |")
    assert list(table) == list(ROUTERS)
    for name, router in overviews(parse_config({})).items():
        parameters, batch_dependent = table[name][2], table[name][3]
        assert re.search(rf"(^|= ){router.parameters:,}\b", parameters), name
        assert f"{router.parameters:,}" in section(name), name
        assert batch_dependent == ("yes" if router.batch_dependent else "no"), name


def test_refused_penalties_are_those_of_the_code() -> None:
    documented = {
        name: set(re.findall(r"`(\w+)`", cells[0]))
        for name, cells in rows("| router | refused penalties |").items()
    }
    assert documented == {
        name: set(router.Config().idle_penalties)
        for name, router in ROUTERS.items()
        if router.Config().idle_penalties
    }


def test_every_penalty_is_explained() -> None:
    assert set(rows("| key | formula |")) == set(PenaltyConfig.model_fields)
