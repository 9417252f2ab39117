"""A few of the kills of `make kill-test`, which does a thousand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def kills(script: str, *words: str) -> int:
    """How many hit; an exit code other than 0 means that a invariant was broken."""
    command = [sys.executable, f"tests/crash/{script}.py", "--seed", "7", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    count = json.loads(done.stdout.splitlines()[-1])["kills"]
    assert isinstance(count, int)
    return count


@pytest.mark.slow
def test_runs_killed_at_random_moments_end_in_the_same_bytes() -> None:
    assert kills("kills", "--kills", "3", "--commands", "0") == 3


@pytest.mark.slow
def test_killed_commands_leave_the_former_output_or_the_new_one() -> None:
    names = ("prepare", "predict", "export")
    given = [word for name in names for word in ("--command", name)]
    assert kills("commands", "--kills", "1", *given) == 3


@pytest.mark.slow
def test_a_service_answers_whatever_is_killed_while_its_model_is_replaced() -> None:
    assert kills("reloads", "--kills", "2") == 2
