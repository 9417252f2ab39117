"""The README tells the truth: its tour runs as typed, and every command and flag in it exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = sorted(set(re.findall(r"^(?:\s{4})?(recsys-moe [a-z].*)$", README, re.MULTILINE)))


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert found, language
    return found.group(1)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which `recsys-moe` is this checkout's command, installed or not."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "recsys-moe"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m recsys_moe.cli "$@"\n')
    script.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}


def test_the_tour_runs_as_typed_and_so_does_the_python_after_it(
    shell: dict[str, str], tmp_path: Path
) -> None:
    tour = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block("bash")],
        cwd=tmp_path, env=shell, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert tour.returncode == 0, tour.stderr
    assert "auc" in tour.stdout and "unseen user 1" in tour.stdout
    assert (tmp_path / "scores.csv").read_text().count("\n") == 4
    python = subprocess.run(
        [sys.executable, "-c", block("python")],
        cwd=tmp_path, env=shell, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert python.returncode == 0, python.stderr
    assert "Recommendation(rank=1" in python.stdout


@pytest.mark.parametrize("line", LINES)
def test_every_command_and_flag_in_the_readme_exists(line: str, shell: dict[str, str]) -> None:
    words = shlex.split(line, comments=True)
    command = [word for word in words[1:3] if not word.startswith("-") and "/" not in word]
    result = subprocess.run(
        [*words[:1], *command, "--help"], env=shell, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for flag in (word for word in words if word.startswith("--")):
        assert flag in result.stdout, f"{line}: {flag}"


def test_every_shipped_config_is_named_in_the_readme() -> None:
    for path in (ROOT / "configs").glob("*.yaml"):
        assert f"`{path.stem}`" in README, path.name
