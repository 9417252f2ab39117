"""A process of two whose connections are cut: the run ends, says so, and goes on from there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.kills import RESULTS, SETTINGS

ROOT = Path(__file__).parents[2]


def fit(data: Path, out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = (*SETTINGS, "trainer.devices=2", "model.router.name=tests.crash.cut:CutRouter")
    sets = [word for setting in settings for word in ("--set", setting)]
    words = ["fit", "--data", data, "--out", out, "--resume", "auto", *sets]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, "-m", "recsys_moe", *words],
        env=env, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds its connections in /proc")
def test_a_lost_connection_ends_the_run_in_one_line_and_nothing_is_lost(
    prepared: Path, tmp_path: Path
) -> None:
    cut = fit(prepared, tmp_path / "run", CUT_RANK="1", CUT_AT="1.5")
    assert cut.returncode == 1, cut.stderr
    assert "Traceback" not in cut.stderr
    assert cut.stderr.splitlines()[-1].startswith("error: ")
    rows = (tmp_path / "run" / "metrics.csv").read_text().count("\n")
    assert rows == 2, "a header, and the one epoch that came before"
    for out in ("run", "straight"):
        done = fit(prepared, tmp_path / out)
        assert done.returncode == 0, done.stderr
    for name in RESULTS:
        ours, straight = (tmp_path / out / name for out in ("run", "straight"))
        assert ours.read_bytes() == straight.read_bytes(), name
