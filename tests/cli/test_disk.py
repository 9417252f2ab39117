"""Disks that are full or read-only: the path is named, nothing half-written, no result lost."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Command

LIMITED = """
import json, resource, sys
from recsys_moe.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
for words in json.loads(sys.argv[1]):
    sys.argv = ["recsys-moe", *words]
    try:
        main()
    except SystemExit as end:
        print(end.code)
"""
OUTPUTS = ["p.csv", "p.parquet", "l.csv", "l.jsonl", "l.parquet"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there are no limits of files to set")
def test_a_disk_that_takes_no_more_is_an_error_with_the_path(run: Path, tmp_path: Path) -> None:
    """No file may have more than 2000 bytes; all commands in one process, which loads torch."""
    (tmp_path / "users.txt").write_text("".join(f"{n}\n" for n in range(1, 41)))
    pairs = "".join(f"{n % 60},{n % 40}\n" for n in range(200))
    (tmp_path / "pairs.csv").write_text(f"user,item\n{pairs}")
    calls = [
        ["predict", str(run), "--input", "pairs.csv", "--output", name]
        if name.startswith("p")
        else ["recommend", str(run), "--users", "users.txt", "--output", name]
        for name in OUTPUTS
    ]
    calls.append(["report", str(run), "--out", "page"])
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, json.dumps(calls)],
        cwd=tmp_path, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout.split() == ["1"] * 6, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    for name, line in zip([*OUTPUTS, "page"], errors, strict=True):
        assert line.startswith(f"error: {name}: ") and "File too large" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.csv", "users.txt"]


def test_an_evaluation_that_cannot_be_kept_is_printed(
    run: Path, tmp_path: Path, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    """A file in the place of the folder stops the superuser too, whom no read-only folder does."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns("evaluation", "checkpoints"))
    (copy / "evaluation").write_text("")
    done = command("evaluate", copy, "--json")
    assert done.exit_code == 0 and json.loads(done.out)["rows"] > 0
    said = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert any(f"cannot write {copy}/evaluation/test.json" in line for line in said)
    assert command("evaluate", copy, "--min", "watch.auc=1.01").exit_code == 4
