"""What `fit` says of settings that follow the data: once, as the run begins."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import recsys_moe
from recsys_moe.errors import ConfigError
from tests.conftest import Command

TOLD = "settings follow the data"
TINY = ("--set", "model.embedding_dim=8", "--set", "model.expert_dim=8", "--max-epochs", 1)


def test_a_refused_run_says_nothing_before_the_error(
    prepared: Path, run: Path, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    command.fails(2, "fit", "--data", prepared, "--out", run, *TINY)
    command.fails(2, "fit", "--data", prepared, "--out", run, "--dry-run", *TINY)
    with pytest.raises(ConfigError, match="exists"):
        recsys_moe.fit(prepared, run)
    assert TOLD not in caplog.text


def test_a_run_and_a_dry_run_say_it_once(
    prepared: Path, tmp_path: Path, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for words in (["--dry-run"], []):
        caplog.clear()
        command("fit", "--data", prepared, "--out", tmp_path / "run", *TINY, *words)
        assert caplog.text.count(TOLD) == 1
    caplog.clear()
    command("fit", "--data", prepared, "--out", tmp_path / "run", "--resume", "auto", *TINY)
    assert TOLD not in caplog.text  # the run has its settings


def test_a_router_that_few_rows_would_not_get_is_told_first(
    prepared: Path, tmp_path: Path, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    """Its settings ask for one that has them, where 2,000 rows get softmax."""
    caplog.set_level(logging.INFO)
    joint = ("--set", "model.router.joint=3")
    said = (
        "model.router.name=moesart: model.router.joint is given; without it, few rows get softmax"
    )
    assert said in command("config", "explain", "--data", prepared, *joint[:2]).out.splitlines()
    command("fit", "--data", prepared, "--out", tmp_path / "run", "--dry-run", *TINY, *joint)
    lines = caplog.text[caplog.text.index(TOLD) :].splitlines()
    assert said in lines[1]
    assert sum("=" in line for line in lines) == 3


def test_settings_about_several_tasks_are_said_to_be_idle_where_there_is_one(
    prepared: Path, tmp_path: Path, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [f"u{n % 20},i{n % 13},{n % 2}" for n in range(200)]
    (tmp_path / "log.csv").write_text("\n".join(["user,item,like", *lines]))
    words = ("--user", "user", "--item", "item", "--task", "like:binary=like")
    alone = tmp_path / "alone"
    command(
        *("prepare", "table", "--input", tmp_path / "log.csv", *words, "--duplicates", "keep"),
        *("--out", alone),
    )
    settings = ("--set", "model.router.joint=3", "--set", "penalties.disagreement=0.1")
    for data, times in ((prepared, 0), (alone, 1)):
        caplog.clear()
        out = tmp_path / f"run{times}"
        done = command("fit", "--data", data, "--out", out, "--dry-run", *TINY, *settings)
        assert done.exit_code == 0
        assert caplog.text.count("model.router.joint=3 has no effect on one task") == times
        assert caplog.text.count("penalties.disagreement=0.1 has no effect on one task") == times


@pytest.mark.slow
def test_two_processes_say_it_once_and_warn_once(prepared: Path, tmp_path: Path) -> None:
    words = ("fit", "--data", prepared, "--out", tmp_path / "run", *TINY, "--devices", 2)
    done = subprocess.run(
        [*(sys.executable, "-m", "recsys_moe"), *map(str, words), "--router", "topk", "--k", "1"],
        capture_output=True, text=True, timeout=280, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(TOLD) == 1
    assert done.stderr.count("model.router.k is 1: ") == 1
