"""One process per device: their environment, and how the command ends when one fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from recsys_moe.errors import ConfigError
from recsys_moe.train.processes import launch

LOCAL = "import os, sys, time, signal; rank = int(os.environ['LOCAL_RANK'])\n"
REPORT = LOCAL + "from recsys_moe.train.processes import launch\n"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As started by a person: nothing in the environment says otherwise."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS", launch.REPORTS)
    for name in (*names, "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def run(monkeypatch: pytest.MonkeyPatch, code: str, devices: int = 2, num_nodes: int = 1) -> None:
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", code])
    launch.run_workers(devices, num_nodes)


@pytest.mark.parametrize(
    ("environment", "devices", "num_nodes", "first"),
    [
        ({}, 3, 1, 0),
        ({"NODE_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "5"}, 2, 2, 2),
    ],
    ids=["alone", "second of two machines"],
)
def test_each_device_gets_a_process_with_its_rank_and_its_share_of_the_threads(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    environment: dict[str, str],
    devices: int,
    num_nodes: int,
    first: int,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
    write = f"open({str(tmp_path)!r} + f'/{{rank}}', 'w').write(' '.join("
    run(monkeypatch, LOCAL + write + f"os.environ[n] for n in {names}))", devices, num_nodes)
    found = [(tmp_path / str(rank)).read_text().split() for rank in range(devices)]
    address, port = environment.get("MASTER_ADDR", "127.0.0.1"), found[0][3]
    assert port == environment.get("MASTER_PORT", port)
    threads, world = str(max(1, (os.cpu_count() or 1) // devices)), str(devices * num_nodes)
    assert found == [[str(first + n), world, address, port, threads] for n in range(devices)]


def test_several_machines_must_know_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="num_nodes=2 needs MASTER_ADDR.*MASTER_ADDR is missing"):
        run(monkeypatch, "", num_nodes=2)


@pytest.mark.slow
def test_the_first_error_ends_all_with_its_message_and_exit_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Process 1 fails; 0 notices a while later that the connection is lost; 2 waits forever, and
    not until the end of SECONDS_TO_END, which are for what the first one has to clear."""
    code = REPORT + (
        "first = os.path.join(os.environ[launch.REPORTS], '1.json')\n"
        "while rank == 0 and not os.path.exists(first): time.sleep(0.01)\n"
        "time.sleep((0.3, 0, 60)[rank])\n"
        "launch.report(('connection lost', 'bad rows', '')[rank], (1, 3, 0)[rank])\n"
        "sys.exit((1, 3, 0)[rank])"
    )
    start = time.monotonic()
    with pytest.raises(launch.WorkerError, match="^bad rows$") as failed:
        run(monkeypatch, code, devices=3)
    assert failed.value.exit_code == 3
    assert time.monotonic() - start < launch.SECONDS_TO_END


def test_a_killed_process_is_named_and_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "SECONDS_TO_END", 0.2)
    code = LOCAL + "os.kill(os.getpid(), 9) if rank == 1 else time.sleep(60)"
    with pytest.raises(launch.WorkerError, match="process of device 1 was ended by signal 9"):
        run(monkeypatch, code)


def test_an_exit_without_a_word_is_not_taken_for_success(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(launch.WorkerError, match="ended early") as failed:
        run(monkeypatch, LOCAL + "sys.exit(7 * rank)")
    assert failed.value.exit_code == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_every_process_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    code = LOCAL + (
        f"number = {int(number)}; here = {str(tmp_path)!r} + f'/{{rank}}'\n"
        "def stop(*_):\n    open(here, 'a').write('x')\n"
        "signal.signal(number, stop); open(here, 'w')\n"
        "while not os.path.getsize(here): time.sleep(0.01)\n"
        "time.sleep(0.2); sys.exit(128 + number)"
    )

    def send() -> None:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    threading.Thread(target=send, daemon=True).start()
    with pytest.raises(launch.WorkerError) as stopped:
        run(monkeypatch, code)
    assert stopped.value.exit_code == 128 + number
    assert [file.read_text() for file in sorted(tmp_path.iterdir())] == ["x", "x"]
    assert signal.getsignal(number) == before


@pytest.mark.slow
def test_a_signal_that_comes_twice_for_one_wish_is_passed_on_once_and_a_later_one_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As `timeout` sends it, on a busy machine: the second one finds processes that are leaving."""
    code = LOCAL + (
        f"here = {str(tmp_path)!r} + f'/{{rank}}'\n"
        "def stop(*_):\n    open(here, 'a').write('x')\n"
        f"signal.signal({int(signal.SIGTERM)}, stop); open(here, 'w')\n"
        "while os.path.getsize(here) < 2: time.sleep(0.01)\n"
        "sys.exit(143)"
    )

    sent = 0

    def send() -> None:
        nonlocal sent
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        for seconds in (0.3, 2.0, 0.0):
            sent += 1
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(seconds)

    before = signal.signal(signal.SIGTERM, lambda *_: None)  # of one that comes too late
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    with pytest.raises(launch.WorkerError):
        run(monkeypatch, code)
    sent_by_then = sent
    sender.join()
    signal.signal(signal.SIGTERM, before)
    assert sent_by_then == 3  # both waited for the third one, 2.3 s after the first
    assert [file.read_text() for file in sorted(tmp_path.iterdir())] == ["xx", "xx"]


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells children on Linux alone")
def test_processes_end_when_the_command_is_killed(tmp_path: Path) -> None:
    worker = LOCAL + f"open({str(tmp_path)!r} + f'/{{os.getpid()}}', 'w'); time.sleep(60)"
    starter = (
        "import sys; from recsys_moe.train.processes import launch; "
        f"sys.orig_argv = [sys.executable, '-c', {worker!r}]; launch.run_workers(2, 1)"
    )
    with subprocess.Popen([sys.executable, "-c", starter], cwd=Path(__file__).parents[3]) as parent:
        deadline = time.monotonic() + 30
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        parent.kill()
    found = [int(file.name) for file in tmp_path.iterdir()]
    assert len(found) == 2
    while any(is_running(pid) for pid in found) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(is_running(pid) for pid in found)


def is_running(pid: int) -> bool:
    """False also for a zombie, which nobody may be there to bury."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_a_report_is_left_only_to_our_own_starter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not launch.report("lost", 1)
    monkeypatch.setenv(launch.REPORTS, str(tmp_path))
    assert launch.report("lost", 1)
    assert [file.name for file in tmp_path.iterdir()] == ["0.json"]
