"""The page on a model's life tells the truth: its commands run, on a log that grows."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from recsys_moe.cli import app
from tests import logs

PAGE = (Path(__file__).parents[1] / "docs/lifecycle.md").read_text(encoding="utf-8")


def commands(heading: str) -> list[list[str]]:
    """The commands of a section, as words."""
    section = PAGE[PAGE.index(f"## {heading}") :].split("\n## ")[0]
    lines = re.findall(r"^    recsys-moe (.*)$", section.replace("\\\n       ", ""), re.MULTILINE)
    return [shlex.split(line) for line in lines]


def type_in(words: list[str]) -> None:
    words = [word.replace("click.auc=0.75", "click.auc=0.1") for word in words]
    few = ["--max-epochs", "1"] if words[0] == "fit" else []
    assert app([*words, *few], standalone_mode=False) in (None, 0), words


def test_the_commands_of_day_one_and_of_every_day_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but `serve`, which would stay; on made-up clicks, for one epoch."""
    monkeypatch.chdir(tmp_path)
    logs.rare_clicks(Path("whole.csv"), users=100, items=60)
    header, *rows = Path("whole.csv").read_text().splitlines()
    prepare, fit, serve = commands("Day one")
    Path("log.csv").write_text("\n".join([header, *rows[: len(rows) // 2]]) + "\n")
    type_in(prepare)
    type_in(fit)
    assert serve == ["serve", "runs/day1"]
    Path("whole.csv").rename("log.csv")
    *every_day, resume = commands("Every day")
    for words in every_day:
        type_in(words)
    assert json.loads(Path("runs/day2/data.lock.json").read_text())["from"]["folder"]
    assert resume[-1] == "auto"
    type_in(resume)
