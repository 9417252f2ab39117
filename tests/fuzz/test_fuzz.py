"""A few of the inputs of `make fuzz`, one through each target, and that it sees what breaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz.targets import KEPT, Broken, command, hashes, writing
from tests.fuzz.targets_words import words

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_a_few_inputs_through_every_target_break_no_invariant_and_are_not_repeated(
    tmp_path: Path,
) -> None:
    line = [sys.executable, "tests/fuzz/fuzz.py", "--inputs", "48", "--state", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(2):  # the second time all is done
        done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["broken"] == 0 and told["inputs"] >= 48 and len(told["targets"]) == 16


def test_a_fault_of_ours_breaks_an_invariant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fault(*unused: object, **named: object) -> None:
        raise KeyError("one of ours")

    monkeypatch.setattr("recsys_moe.config.files.read_config_file", fault)
    with pytest.raises(Broken, match=r"exit code 1: error: .*KeyError"):
        command("config", "show", "--config", "quickstart")


def test_a_failure_that_changes_what_was_there_breaks_an_invariant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def changing(*unused: object, codes: object) -> int:
        (tmp_path / "half").write_text("x")
        return 3

    monkeypatch.setattr("tests.fuzz.targets.command", changing)
    with pytest.raises(Broken, match=r"a failure changed .*half"):
        writing(tmp_path, "predict")()


def test_an_input_leaves_the_kept_formats_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    before = hashes(KEPT)
    # `evaluate` with a bound that nothing meets: it keeps its figures in the run, then ends with 4
    words(np.random.default_rng([6, zlib.crc32(b"words"), 1209]), tmp_path)()
    assert (tmp_path / "run" / "evaluation" / "test.json").is_file()
    assert hashes(KEPT) == before
