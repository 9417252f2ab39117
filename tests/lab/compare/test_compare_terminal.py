"""What `compare` prints on a terminal: every cell of table.md, aligned, within its width."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from recsys_moe.lab.compare.tables import markdown
from recsys_moe.lab.compare.terminal import show
from tests.conftest import TINY_MODEL
from tests.lab.compare.test_compare_tables import example


def shown(width: int, *, styled: bool = False) -> str:
    stream = io.StringIO()
    colours = "standard" if styled else None
    show(example(), Console(file=stream, width=width, force_terminal=styled, color_system=colours))
    return stream.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_cell_is_cut_or_wrapped_at_any_width(width: int) -> None:
    lines = shown(width).splitlines()
    assert max(map(len, lines)) <= width
    for row in markdown(example()).splitlines():
        if row.startswith("| ") and "---" not in row:
            cells = [cell.strip(" *") for cell in row.strip("|").split("|")]
            assert all(any(cell in line for line in lines) for cell in cells), cells


def test_columns_that_do_not_fit_stand_below_with_the_routers_again() -> None:
    heads = [line.split() for line in shown(60).splitlines() if line.startswith("router")]
    assert heads == [["router", "k-sparse", "runs", "loss"], ["router", "s/epoch", "parameters"]]
    assert sum(line.startswith("router ") for line in shown(200).splitlines()) == 1


def test_the_best_is_bold_on_a_terminal_and_no_markdown_is_left() -> None:
    assert "\x1b[1m0.4089 +- 0.0002\x1b[0m" in shown(200, styled=True)
    assert "|" not in shown(200) and "**" not in shown(200)


def screen(controller: int) -> str:
    """Everything until the last process has closed the terminal, which Linux tells by an error."""
    said = b""
    with contextlib.suppress(OSError), os.fdopen(controller, "rb", buffering=0) as stream:
        while part := stream.read(4096):
            said += part
    return said.decode()


@pytest.mark.slow
def test_a_terminal_gets_a_table_and_a_pipe_gets_markdown(
    prepared: Path, comparison: Path, tmp_path: Path
) -> None:
    (tmp_path / "base.yaml").write_text("model: {}\n")  # as the comparison: fixed defaults
    tiny = [f"--set=model={json.dumps(TINY_MODEL)}", "--max-epochs=2", "--batch-size=64"]
    asked = ["--routers=moesart,topk", "--seeds=2", "--weights=0.9,0.1", f"--out={comparison}"]
    asked.append(f"--config={tmp_path / 'base.yaml'}")
    args = [sys.executable, "-m", "recsys_moe.cli", "compare", f"--data={prepared}", *asked, *tiny]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "COLUMNS": "100"}
    piped = subprocess.run(args, env=env, capture_output=True, text=True)
    assert piped.stdout == (comparison / "table.md").read_text(), piped.stderr
    controller, terminal = pty.openpty()
    with subprocess.Popen(args, env=env, stdout=terminal, stderr=subprocess.DEVNULL):
        os.close(terminal)
        printed = screen(controller)
    assert "moesart" in printed and "k-sparse" in printed and "| " not in printed
    files = "table.md, table.tex, table.csv, runs.csv, epochs.csv, results.json"
    assert printed.rstrip().endswith(files)
