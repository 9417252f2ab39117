"""A few of the kills of `make kill-test` and of the failed writes of `make fault-test`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the scripts need Linux")


def counts(script: str, *words: str) -> Any:
    """What the script counted; an exit code other than 0 means that an invariant was broken."""
    command = [sys.executable, f"tests/crash/{script}.py", "--seed", "7", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def of(*names: str) -> list[str]:
    return [word for name in names for word in ("--command", name)]


@pytest.mark.slow
def test_runs_killed_at_random_moments_end_in_the_same_bytes() -> None:
    assert counts("kills", "--kills", "3", "--commands", "0")["kills"] == 3


@pytest.mark.slow
def test_killed_commands_leave_the_former_output_or_the_new_one() -> None:
    words = ("--kills", "1", *of("prepare", "predict", "export"))
    assert counts("commands", *words)["kills"] == 3


@pytest.mark.slow
def test_a_service_answers_whatever_is_killed_while_its_model_is_replaced() -> None:
    assert counts("reloads", "--kills", "2")["kills"] == 2


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_disk_that_fails_leaves_the_former_output_and_one_line_that_says_why() -> None:
    found = counts("faults", "--most", "1", *of("prepare", "predict", "fit"))
    assert found == {"faults": 12, "EIO": 3, "ENOSPC": 3, "EROFS": 3, "jumps": 3}
