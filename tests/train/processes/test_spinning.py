"""One training of a machine spins for long, and only where its cores are idle."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from recsys_moe.lab.jobs.executor import LocalExecutor
from recsys_moe.train.processes import launch, spinning

NAME = f"\0recsys-moe: a test, {os.getpid()}"
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="names of sockets without files")


@pytest.fixture(autouse=True)
def undecided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a new process, on a machine whose two cores are idle and nobody's turn."""
    for name in spinning.SAID:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(spinning, "_is_ours", False)
    monkeypatch.setattr(spinning, "TURN", NAME)
    monkeypatch.setattr(spinning, "has_idle_cores", lambda wanted: True)
    yield
    spinning.give_turn_back()


def decided() -> str:
    spinning.spin_briefly()
    spinning.spin_long_if_alone()
    return os.environ[spinning.VARIABLE]


@needs_linux
def test_a_lone_training_spins_as_long_as_openmp_does() -> None:
    assert decided() == "300000"


def test_what_the_environment_says_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for said in ("7", "3000"):
        monkeypatch.setenv(spinning.VARIABLE, said)
        assert decided() == said


def test_beside_other_work_it_spins_briefly_and_leaves_the_turn_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spinning, "has_idle_cores", lambda wanted: False)
    assert decided() == "3000"
    assert not spinning._turns


def test_one_thread_waits_for_none_and_takes_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert decided() == "3000"
    assert not spinning._turns


@needs_linux
def test_the_turn_is_one_process_at_a_time_and_ends_with_it() -> None:
    """Also when that is killed, and though it left no word."""
    code = "import sys, time; from recsys_moe.train.processes import spinning; "
    code += f"print(spinning.take_turn({NAME!r}), flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    with other.stdout:
        try:
            assert other.stdout.readline() == "True\n"
            assert decided() == "3000"
        finally:
            other.kill()
            other.wait()
    assert spinning.take_turn(NAME)


@pytest.mark.parametrize(
    ("others", "wanted", "quota", "is_free"),
    [
        (0.0, 4, None, True),
        (0.2, 4, None, True),  # 0.3 processors are tolerated
        (0.4, 4, None, False),
        (1.2, 3, None, True),
        (0.0, 5, None, False),
        (0.0, 4, 2.0, False),  # the control group grants two
    ],
)
def test_cores_are_idle_where_others_leave_as_many_as_there_will_be_threads(
    others: float, wanted: int, quota: float | None, is_free: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four cores; the second look is two seconds after the first."""
    monkeypatch.undo()
    seen, clock = iter([10.0, 10.0 + 2 * others]), iter([50.0, 52.0])
    monkeypatch.setattr(spinning, "cores", lambda: 4)
    monkeypatch.setattr(spinning, "core_quota", lambda: quota)
    monkeypatch.setattr(spinning, "busy_seconds", lambda: next(seen))
    time = SimpleNamespace(sleep=lambda seconds: None, perf_counter=lambda: next(clock))
    monkeypatch.setattr(spinning, "time", time)
    assert spinning.has_idle_cores(wanted) == is_free


def test_busy_are_all_but_idle_waiting_stolen_and_our_own_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """user 100, nice 20, system 30, irq 4, softirq 6 ticks are 1.6 s at 100 Hz; 0.5 s are ours."""
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 30 9999 888 4 6 777 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\n")
    monkeypatch.setattr(spinning, "STAT", stat)
    monkeypatch.setattr(spinning.os, "times", lambda: (0.3, 0.2, 50.0, 60.0, 70.0))
    monkeypatch.setattr(spinning.os, "sysconf", lambda name: {"SC_CLK_TCK": 100}[name])
    assert spinning.busy_seconds() == pytest.approx(1.1)


def test_without_figures_of_the_system_no_core_counts_as_idle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(spinning, "STAT", tmp_path / "none")
    assert not spinning.has_idle_cores(1)


def test_runs_of_a_comparison_decide_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    spinning.spin_briefly()
    assert spinning.VARIABLE not in LocalExecutor(1, 1).environment()
    monkeypatch.setenv(spinning.VARIABLE, "7")
    monkeypatch.setattr(spinning, "_is_ours", False)
    assert LocalExecutor(1, 1).environment()[spinning.VARIABLE] == "7"


def test_processes_that_train_together_decide_for_themselves_and_have_the_turn_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spinning.spin_briefly()
    monkeypatch.setenv(spinning.VARIABLE, "300000")
    assert spinning.VARIABLE not in launch._environment(2, 1)


@needs_linux
def test_asked_again_a_process_keeps_its_turn() -> None:
    assert decided() == decided() == "300000"
    assert not spinning.take_turn(NAME) and len(spinning._turns) == 1


def test_a_policy_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    spinning.spin_briefly()
    spinning.spin_long_if_alone()
    assert spinning.VARIABLE not in os.environ


UNTIL_TORCH = """
import sys
from recsys_moe import cli
from recsys_moe.train.processes import spinning

class Torch:
    def find_spec(name, path=None, target=None):
        if name == "torch":
            print("loads torch")
            sys.exit(0)

spinning.spin_long_if_alone = lambda: print("asks")
sys.meta_path.insert(0, Torch)
cli.app()
"""


@pytest.mark.parametrize(("rank", "asks"), [(None, True), ("0", False)])
def test_fit_asks_before_torch_loads_unless_it_is_one_of_several(
    rank: str | None, asks: bool, prepared: Path, tmp_path: Path
) -> None:
    words = ["fit", "--data", str(prepared), "--out", str(tmp_path / "run"), "--dry-run"]
    several = {} if rank is None else {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "1"}
    run = subprocess.run(
        [sys.executable, "-c", UNTIL_TORCH, *words],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), **several},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["asks"] * asks + ["loads torch"]
