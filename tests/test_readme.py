"""README and docs tell the truth: the tour runs; commands, flags, files and links in them exist."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer

import recsys_moe
from recsys_moe.cli import app
from tests import logs

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FOLDERS = ("docs", "research")
PAGES = sorted([*ROOT.glob("*.md"), *(page for f in FOLDERS for page in (ROOT / f).rglob("*.md"))])
FEWER = {"prepare": ["--interactions", "20000"], "fit": ["--max-epochs", "1"]}
"""By command of the tour: what a test adds to it."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def one_block(language: str) -> str:
    (text,) = blocks(language)
    return text


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def typed_commands(text: str) -> list[list[str]]:
    """Words of every line of code that starts with `recsys-moe`, joined over backslashes."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = re.findall(r"^(?:\s{4}|\$ )?(recsys-moe [a-z].*)$", joined, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


COMMANDS = sorted(
    {tuple(words) for page in PAGES for words in typed_commands(page.read_text("utf-8"))}
)


def type_in(line: str) -> None:
    command, *words = shlex.split(line)
    if command == "recsys-moe":
        assert app([*words, *FEWER.get(words[0], [])], standalone_mode=False) in (None, 0), line
    else:
        subprocess.run(["bash", "-euo", "pipefail", "-c", line], check=True)


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What the tour printed; the current folder is where it was typed.

    Its words as typed, but for one epoch on fewer rows: that it learns is the business of other
    tests. In this process, as importing torch anew for every command takes seconds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("tour"))
        with redirect_stdout(io.StringIO()) as printed:
            for line in one_block("bash").splitlines():
                type_in(line)
        yield printed.getvalue()


def test_the_tour_runs_and_leaves_the_scores_that_the_readme_names(tour: str) -> None:
    assert "AUC" in tour and "unseen user 1" in tour
    header, *rows = Path("scores.csv").read_text().splitlines()
    added = header.split(",")[2:]
    assert added == ["watch", "rating", "watch_calibrated", "unseen_user", "unseen_item"]
    assert len(rows) == 3
    after = README[README.index("`scores.csv` is") :].split("\n\n")[0]
    assert [column for column in re.findall(r"`(\w+)`", after) if column in added] == added


def test_the_commands_for_ones_own_log_lead_to_recommendations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All but `serve`, which would stay; on made-up clicks, for one epoch."""
    monkeypatch.chdir(tmp_path)
    logs.rare_clicks(Path("log.csv"), users=100, items=60)
    section = README[README.index("## Your own data") : README.index("## The layer")]
    (text,) = re.findall(r"^```\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    *lines, last = text.splitlines()
    assert [line.split()[1] for line in lines] == ["prepare", "fit", "evaluate", "recommend"]
    assert last == "recsys-moe serve runs/mine"
    for line in lines:
        command, *words = shlex.split(line)
        more = ["--max-epochs", "1"] if words[0] == "fit" else []
        assert app([*words, *more], standalone_mode=False) in (None, 0), line
    printed = capsys.readouterr().out
    assert "baseline: popularity AUC" in printed
    ranks = re.findall(r"^ *(\d+) +p\d+ ", printed, re.MULTILINE)
    assert ranks == [str(rank) for rank in range(1, 11)]


def test_the_python_after_the_tour_runs(tour: str, capsys: pytest.CaptureFixture[str]) -> None:
    predictor = blocks("python")[0]
    exec(compile(predictor, "README.md", "exec"), {})
    assert "Recommendation(rank=1" in capsys.readouterr().out


def test_four_lines_lead_from_a_frame_to_recommendations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On made-up clicks, for one epoch."""
    monkeypatch.chdir(tmp_path)
    logs.rare_clicks(Path("log.csv"), users=100, items=60)
    code = blocks("python")[1]
    assert len([line for line in code.splitlines() if line and "import" not in line]) == 4
    few = partial(recsys_moe.fit, config={"trainer": {"max_epochs": 1}})
    monkeypatch.setattr(recsys_moe, "fit", few)
    with pd.option_context("display.width", 200, "display.max_columns", None):  # any terminal
        exec(compile(code, "README.md", "exec"), {"log": pd.read_csv("log.csv")})
    printed = capsys.readouterr().out
    assert re.findall(r"v1 +\w+ +(\d+) +p\d+ ", printed) == [str(rank) for rank in range(1, 11)]


def test_the_layer_alone_runs() -> None:
    layer = blocks("python")[2]
    names: dict[str, Any] = {}
    exec(compile(layer, "README.md", "exec"), names)
    names["loss"].backward()
    assert names["y_BTH"].shape == (512, 2, 256) and len(names["routings"]) == 2


@pytest.fixture(scope="module")
def flags_of() -> dict[tuple[str, ...], set[str]]:
    """Flags of every command of the command line, by its words."""
    found: dict[tuple[str, ...], set[str]] = {}

    def walk(command: typer.core.TyperCommand, words: tuple[str, ...]) -> None:
        options = (flag for p in command.params for flag in (*p.opts, *p.secondary_opts))
        found[words] = {"--help", *options}
        for word, child in getattr(command, "commands", {}).items():
            walk(child, (*words, word))

    walk(typer.main.get_command(app), ())
    return found


def test_every_command_and_flag_in_the_pages_exists(
    flags_of: dict[tuple[str, ...], set[str]],
) -> None:
    assert len(COMMANDS) > 40 and len(blocks("python")) == 3
    for words in COMMANDS:
        command = words[1:3] if words[1:3] in flags_of else words[1:2]
        assert command in flags_of, f"recsys-moe {' '.join(command)} is no command"
        flags = {word.split("=")[0] for word in words if word.startswith("--")}
        assert flags <= flags_of[command], words


def test_the_readme_is_read_in_minutes() -> None:
    assert len(README.splitlines()) <= 120
    results = README[README.index("## Results") : README.index("## Documentation")]
    assert len(re.findall(r"^\| \d", results, re.MULTILINE)) <= 8


def test_the_documentation_is_short_and_has_no_commit_hashes() -> None:
    pages = [README, *(page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))]
    assert sum(len(text.split()) for text in pages[1:]) <= 25_000
    assert [
        text[:40] for text in pages if re.search(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7}\b", text)
    ] == []


def test_every_relative_link_points_to_a_file() -> None:
    found = [(page, target) for page in PAGES for target in links(page.read_text("utf-8"))]
    files = [(page, target.split("#")[0]) for page, target in found if "://" not in target]
    assert len(files) > 100
    assert [(page, file) for page, file in files if not (page.parent / file).exists()] == []


def links(text: str) -> list[str]:
    return [*re.findall(r"\]\(([^)\s]+)\)", text), *re.findall(r'<img src="([^"]+)"', text)]


def test_pages_are_plain_ascii_with_short_lines() -> None:
    assert len(PAGES) > 30
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.isascii(), page
        assert [line for line in text.splitlines() if len(line) > 120 and line[0] != "|"] == []


def test_every_source_file_that_a_page_names_exists() -> None:
    pattern = r"`((?:recsys_moe|data_prep|tests|benchmarks|configs)/[\w/.]*)`"
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = {path for path in re.findall(pattern, text) if "mine.py" not in path}
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if f": {page}\n" not in navigation] == []


def test_every_shipped_config_is_named_in_the_page_on_training() -> None:
    text = (ROOT / "docs/how-to/train.md").read_text(encoding="utf-8")
    shipped = [path.stem for path in (ROOT / "configs").glob("*.yaml")]
    assert [stem for stem in shipped if f"`{stem}`" not in text] == []


def test_pictures_are_small() -> None:
    pictures = [*(ROOT / "docs" / "images").iterdir()]
    assert pictures
    assert {p.name: p.stat().st_size for p in pictures if p.stat().st_size > 200_000} == {}
