"""A few of the kills of `make crash-test`, which does a hundred."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_runs_killed_at_random_moments_end_in_the_same_bytes() -> None:
    command = [sys.executable, "tests/crash/kills.py", "--kills", "5", "--commands", "0"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["kills"] == 5
