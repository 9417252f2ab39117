"""Tutorials and guides tell the truth: their commands run as they stand, for one epoch."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.cli import app
from tests import logs

DOCS = Path(__file__).parents[1] / "docs"


def commands(page: str, first: str = "", last: str = "") -> list[str]:
    """The commands of a page from one heading to another, joined over backslashes."""
    text = (DOCS / page).read_text(encoding="utf-8").replace("\\\n       ", "")
    text = text[text.index(first) : text.index(last) if last else None]
    return re.findall(r"^    ((?:recsys-moe|printf) .*)$", text, re.MULTILINE)


def type_in(line: str) -> None:
    program, *words = shlex.split(line, comments=True)
    if program == "printf":
        subprocess.run(["bash", "-euo", "pipefail", "-c", line], check=True)
        return
    words = [re.sub(r"click.auc=0.\d+", "click.auc=0.1", word) for word in words]
    few = ["--max-epochs", "1"] if words[0] == "fit" else []
    assert app([*words, *few], standalone_mode=False) in (None, 0), words


def test_the_tutorial_on_an_own_log_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "tutorials/your-log.md").read_text(encoding="utf-8")
    exec(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0], {})
    for line in commands("tutorials/your-log.md"):
        type_in(line)
    header = Path("scores.csv").read_text().splitlines()[0]
    assert header == "user,item,click,seconds,click_calibrated,unseen_user,unseen_item"


@pytest.mark.slow
def test_the_tutorial_on_the_order_of_events_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What comes after an event is not learned in one epoch, but the event changes the list."""
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "tutorials/next-item.md").read_text(encoding="utf-8")
    log, predictor = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(log, {})
    for line in commands("tutorials/next-item.md"):
        type_in(line)
    assert "top-N evaluation by view: 500 users" in capsys.readouterr().out
    names: dict[str, Any] = {}
    exec(predictor, names)
    lists = [[one.item for one in names[name]] for name in ("before", "after", "new")]
    assert [len(set(one)) for one in lists] == [5, 5, 5] and lists[0] != lists[1]


def test_the_tutorial_on_frames_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "tutorials/dataframe.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    few = code.replace(
        '{"model": {"features"', '{"trainer": {"max_epochs": 1}, "model": {"features"'
    )
    assert few != code
    names: dict[str, Any] = {}
    exec(compile(few, "dataframe.md", "exec"), names)
    assert [*names["scores"]] == [
        *("click", "seconds", "click_calibrated", "unseen_user", "unseen_item")
    ]
    assert names["scores"].index.equals(names["log"].head().index)
    assert names["top"].user.tolist() == ["v1"] * 5 + ["v2"] * 5


def test_the_commands_of_incremental_training_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    logs.rare_clicks(Path("whole.csv"), users=100, items=60)
    header, *rows = Path("whole.csv").read_text().splitlines()
    Path("log.csv").write_text("\n".join([header, *rows[: len(rows) // 2]]) + "\n")
    prepare, *every_day = commands("how-to/incremental-training.md")
    type_in(prepare.replace("day2", "day1"))
    type_in("recsys-moe fit --data data/day1 --out runs/day1")
    Path("whole.csv").rename("log.csv")
    for line in (prepare, *every_day):
        type_in(line)
    assert json.loads(Path("runs/day2/data.lock.json").read_text())["from"]["folder"]


@pytest.mark.slow
def test_the_site_is_built_without_a_broken_link(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=DOCS.parent, check=True)
    settings = (tmp_path / "reference/settings.html").read_text(encoding="utf-8")
    assert "model.bilinear_rank" in settings
    commands = (tmp_path / "reference/commands.html").read_text(encoding="utf-8")
    assert "--init-from" in commands
