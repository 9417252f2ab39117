"""The comparison with other libraries: fair turns, whole loops, and no figure without a clock."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

PEERS = Path(__file__).parents[1] / "benchmarks" / "peers"
PYTHON = os.environ.get("RECSYS_MOE_PEERS")
"""Python of the environment that `make bench-peers` makes; without it the peers stay out."""
BLOCK = {"batch_size": 10, "full_batches": 100, "warm_up_steps": 2, "warm_up_seconds": 0.5,
         "steps": 3, "seconds": 1.0, "clock": "wall"}  # fmt: skip


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts import each other by short names, which must not stay behind."""
    monkeypatch.setattr(sys, "path", [str(PEERS), *sys.path])
    monkeypatch.setenv("GOMP_SPINCOUNT", "3000")
    yield
    for path in PEERS.parent.rglob("*.py"):
        sys.modules.pop(path.stem, None)


def compare() -> ModuleType:
    return importlib.import_module("compare")


def ticked(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    step: float,
    **changed: Any,
) -> tuple[int, dict[str, Any]]:
    """Ticks until the clock ended the process, each `step` seconds after the last; its line."""
    clock = importlib.import_module("clock")
    now = iter(float(n) * step for n in range(1000))
    monkeypatch.setitem(clock.CLOCKS, BLOCK["clock"], lambda: next(now))
    monkeypatch.setattr(clock.os, "_exit", lambda code: sys.exit(code))
    watch = clock.Clock(argparse.Namespace(**{**BLOCK, **changed}))
    with pytest.raises(SystemExit):
        for _ in range(1000):
            watch.tick()
    return len(watch.ticks), json.loads(capsys.readouterr().out)


def test_the_clock_measures_steps_after_a_warm_up_of_steps_and_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step of 0.125 s: warm after 0.5 s (4 steps), 1 s more (8 steps), 10 / 0.125 = 80 rows/s."""
    ticks, result = ticked(monkeypatch, capsys, 0.125)
    assert ticks == 1 + 4 + 8
    assert result == {"examples_per_s": 80.0, "steps": 8, "seconds": 1.0, "warm_up_steps": 4}
    # A step of 2 s: two to warm up and three to measure, though one takes long enough.
    ticks, result = ticked(monkeypatch, capsys, 2.0)
    assert (ticks, result["steps"], result["warm_up_steps"]) == (1 + 2 + 3, 3, 2)
    # It ends before the short batch of an epoch.
    ticks, result = ticked(monkeypatch, capsys, 0.125, full_batches=6)
    assert (ticks, result["steps"]) == (1 + 6, 2)


def test_the_clock_can_count_processor_time_which_stands_still_while_others_work() -> None:
    clock = importlib.import_module("clock")
    watch = clock.Clock(argparse.Namespace(**{**BLOCK, "clock": "cpu"}))
    start = time.process_time()
    watch.tick()
    time.sleep(0.5)
    watch.tick()
    assert watch.ticks[0] >= start
    assert watch.ticks[1] - watch.ticks[0] < 0.25  # of 0.5 s asleep none is ours; a wall has all


def test_an_epoch_shorter_than_the_warm_up_is_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = importlib.import_module("clock")
    watch = clock.Clock(argparse.Namespace(**{**BLOCK, "full_batches": 1}))
    watch.tick()
    with pytest.raises(SystemExit, match="over before the warm-up"):
        watch.tick()
    assert capsys.readouterr().out == ""


def test_each_round_begins_with_another_contender() -> None:
    assert [compare().turned(["a", "b", "c"], n) for n in range(4)] == [
        ["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"],
    ]  # fmt: skip


def test_ratios_are_taken_within_a_round() -> None:
    """60 / 10 and 90 / 30: 6 and 3, median 4.5, where the ratio of the medians is 75 / 20. By joint
    choice 80 / 10 and 150 / 30: 8 and 5."""
    rates = {"ours": (60.0, 90.0), "joint3": (80.0, 150.0), "rechub": (10.0, 30.0)}
    blocks = [
        {"contender": name, "round": round_, "examples_per_s": rates[name][round_]}
        for name in rates
        for round_ in (1, 0)
    ]
    ours, joint, rechub = compare().compared(blocks, 16)
    assert rechub["ratio"] == (4.5, pytest.approx(3.3), pytest.approx(5.7))  # and the tenths
    assert (rechub["goal"], rechub["met"]) == (8, False)
    judged = ("ratio", "goal", "met")
    assert [compare().row(rechub)[key] for key in judged] == ["4.5 (3.3 - 5.7)", ">= 8", "no"]
    assert [compare().row(ours)[key] for key in judged] == ["", "", ""]
    assert compare().row(rechub)["joint3"] == "6.5 (5.3 - 7.7)"
    assert (compare().row(joint)["joint3"], compare().row(joint)["joint2"]) == ("", "")


@pytest.mark.parametrize(
    ("code", "printed"),
    [(1, '{"examples_per_s": 5.0}'), (0, "epoch 1 done"), (0, "")],
)
def test_a_contender_that_ended_otherwise_than_by_its_clock_is_no_result(
    code: int, printed: str
) -> None:
    ended = subprocess.CompletedProcess([], code, printed, "the reason")
    with pytest.raises(SystemExit, match="rechub was not measured.*\n.*the reason"):
        compare().common.result_of(ended, "rechub")


def test_a_label_that_is_missing_becomes_the_mean_of_its_column() -> None:
    labels = np.array([[0, 1], [1, math.nan], [1, 4]], dtype=np.float32)
    filled = importlib.import_module("clock").without_missing(labels)
    assert filled.tolist() == [[0, 1], [1, 2.5], [1, 4]]
    assert filled.dtype == np.float32


def test_contenders_train_on_the_rows_of_the_prepared_folder(
    prepared: Path, tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    rows = compare().write_rows(prepared, tmp_path / "rows.npz")
    read = importlib.import_module("clock").load_rows(tmp_path / "rows.npz")
    table = pq.read_table(prepared / "train")
    assert rows == table.num_rows == len(read.user) == len(read.labels)
    assert (read.users, read.items) == (60, 40)
    for column, ours in ((read.user, "user_index"), (read.item, "item_index")):
        assert column.tolist() == table[ours].to_pylist()
    rated = [value for value in table["rating"].to_pylist() if value is not None]
    assert read.labels[~np.isnan(read.labels[:, 1]), 1].tolist() == rated


def test_an_unknown_contender_and_missing_peers_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*words: str) -> str:
        with pytest.raises(SystemExit) as end:
            compare().main(words)
        assert end.value.code == 2
        return capsys.readouterr().err

    assert "'theirs' (choose from" in said("--contenders", "theirs")
    assert "run make bench-peers" in said("--peers-python", str(tmp_path / "none"))


@pytest.mark.slow
def test_fit_and_its_twin_are_measured_in_their_whole_loops() -> None:
    check(["--contenders", "ours", "twin"], ["ours", "twin"])


@pytest.mark.slow
@pytest.mark.skipif(PYTHON is None, reason="RECSYS_MOE_PEERS names no Python with the peers")
def test_the_peers_are_measured_in_their_own_loops() -> None:
    words = ["--contenders", "ours", "rechub", "deepctr", "--peers-python", str(PYTHON)]
    check(words, ["ours", "rechub", "deepctr"])


def compared(*words: str) -> subprocess.CompletedProcess[str]:
    """The comparison, of this checkout."""
    command = [sys.executable, str(PEERS / "compare.py"), *words]
    environment = {**os.environ, "PYTHONPATH": str(PEERS.parents[1])}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def check(words: list[str], contenders: list[str]) -> None:
    run = compared("--quick", "--ratings", "40000", *words)
    assert run.returncode == 0, run.stderr
    *table, last = run.stdout.strip().splitlines()
    result = json.loads(last)
    assert [block["contender"] for block in result["blocks"]] == contenders
    for block in result["blocks"]:
        assert block["steps"] >= 5 and block["examples_per_s"] > 0
    rows = [line for line in table if line.startswith("|")]
    assert len(rows) == 2 + len(contenders) and ">= 6" in rows[-1]
