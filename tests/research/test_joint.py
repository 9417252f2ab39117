"""The study of joint choice: which runs are missing, and the table of those there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from recsys_moe.config.files import merge, merge_all, nested
from recsys_moe.config.settings import parse_config
from research import joint


def line(form: str, seed: int, **figures: float) -> joint.Line:
    values = dict.fromkeys(joint.COLUMNS, "0.5")
    own = {"form": form, "seed": str(seed)}
    return values | own | {name: str(value) for name, value in figures.items()}


def test_seeds_are_run_in_turn_and_what_has_a_line_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    joint.add(line("joint-3", 0), path)
    found = joint.missing(path, ["apart-2", "joint-3"], 2)
    assert next(found) == ("apart-2", 0)
    joint.add(line("apart-2", 1), path)  # by another process, meanwhile
    assert list(found) == [("joint-3", 1)]


def test_the_table_has_means_and_standard_errors_by_visits() -> None:
    """.40 and .42: mean .41, standard deviation .0141, over the root of 2: .01."""
    lines = [line("apart-2", 0, visited=3.5), line("joint-3", 0, visited=3, loss=0.40)]
    lines.append(line("joint-3", 1, visited=3, loss=0.42))
    _, _, first, second = joint.table(lines)
    assert first.startswith("| `joint-3` | 2 | 3.00 |") and "| 0.4100 +- 0.0100 |" in first
    assert second.startswith("| `apart-2` | 1 | 3.50 |")


@pytest.mark.parametrize("form", joint.FORMS)
def test_every_form_is_a_configuration(form: str) -> None:
    raw = merge_all(nested(key, value) for key, value in joint.FORMS[form].items())
    parse_config(merge(nested("model.router.name", "moesart"), raw))
