"""A few of the failed writes of `make fault-test`, which does hundreds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs a C compiler on Linux"
)
def test_a_disk_that_fails_leaves_the_former_output_and_one_line_that_says_why() -> None:
    names = ("prepare", "predict", "fit")
    given = [word for name in names for word in ("--command", name)]
    command = [sys.executable, "tests/crash/faults.py", "--seed", "7", "--most", "1", *given]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout.splitlines()[-1])
    assert counts == {"faults": 12, "EIO": 3, "ENOSPC": 3, "EROFS": 3, "jumps": 3}
