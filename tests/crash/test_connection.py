"""A process of two whose connections are cut: the run ends, says so, and goes on from there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.kills import RESULTS, SETTINGS
from tests.forks import on_two

ROOT = Path(__file__).parents[2]


def words(data: Path, out: Path) -> list[str]:
    settings = (*SETTINGS, "trainer.devices=2", "model.router.name=tests.crash.cut:CutRouter")
    sets = [word for setting in settings for word in ("--set", setting)]
    return ["fit", "--data", str(data), "--out", str(out), "--resume", "auto", *sets]


def cut_after(epochs: str, asked: list[str]) -> subprocess.CompletedProcess[str]:
    """The command, whose second process loses its connections."""
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUT_RANK": "1", "CUT_AT": epochs}
    return subprocess.run(
        [sys.executable, "-m", "recsys_moe", *asked],
        env={**os.environ, **own}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds its connections in /proc")
def test_a_lost_connection_ends_the_run_in_one_line_and_nothing_is_lost(
    prepared: Path, tmp_path: Path
) -> None:
    cut = cut_after("1.5", words(prepared, tmp_path / "run"))
    assert cut.returncode == 1, cut.stderr
    assert "Traceback" not in cut.stderr
    assert cut.stderr.splitlines()[-1].startswith("error: ")
    rows = (tmp_path / "run" / "metrics.csv").read_text().count("\n")
    assert rows == 2, "a header, and the one epoch that came before"
    for out in ("run", "straight"):
        done = on_two(words(prepared, tmp_path / out), tmp_path / f"{out}-log")
        assert done.returncode == 0, done.stderr
    for name in RESULTS:
        ours, straight = (tmp_path / out / name for out in ("run", "straight"))
        assert ours.read_bytes() == straight.read_bytes(), name
