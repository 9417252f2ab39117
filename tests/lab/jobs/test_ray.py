"""Ray itself runs the jobs: what becomes of killed workers, of interruptions, and of a compare.

Each of these takes seconds, since Ray starts several processes; they skip where it is not there.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recsys_moe.lab.jobs import executor as executors
from recsys_moe.lab.jobs.ray_cluster import load_ray
from recsys_moe.lab.jobs.ray_executor import RayExecutor
from tests.conftest import TINY_MODEL
from tests.lab.jobs.commands import ends, ends_soon, job, wait_for
from tests.lab.jobs.test_ray_executor import run

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason='needs ray: pip install "recsys-moe[ray]"'
    ),
]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": "/tmp"}


def once(marker: Path, code: str) -> str:
    """Code that is run the first time alone."""
    first = f"first = pathlib.Path({str(marker)!r})\nif not first.exists():\n    first.touch()\n"
    return first + "".join(f"    {line}\n" for line in code.splitlines())


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster of one node for all tests that ask for it, with a key that no other user has."""
    key = tmp_path_factory.mktemp("key") / "token"
    key.touch(mode=0o600)
    key.write_text(secrets.token_hex(32))
    os.environ |= {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(key),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # it listens on loopback alone
    }
    module = load_ray()
    options: dict[str, Any] = {"include_dashboard": False, "object_store_memory": 80 * 2**20}
    module.init("local", num_cpus=2, log_to_driver=False, configure_logging=False, **options)
    yield module
    module.shutdown()


@pytest.fixture
def address(ray: Any) -> str:
    """HOST:PORT of the cluster, for processes that join it."""
    return str(ray.get_runtime_context().gcs_address)


def test_ray_runs_steps_in_order_with_their_output_in_the_log(ray: Any, tmp_path: Path) -> None:
    told = "print('ray', [n for n in os.environ if n.startswith('RAY_')], os.environ[{!r}])"
    jobs = [job(tmp_path, name, "print('one')", told.format("OMP_NUM_THREADS")) for name in "abc"]
    assert [ends(outcome) for outcome in run(tmp_path, *jobs).values()] == [(0, 2)] * 3
    lines = (tmp_path / "logs" / "a.log").read_text().splitlines()
    assert lines.index("one") < lines.index("ray [] 1")
    assert [ends(outcome) for outcome in run(tmp_path, *jobs).values()] == [(0, 0)] * 3
    assert not list(tmp_path.glob(".probe*"))


def test_a_killed_worker_of_ray_is_replaced_and_its_process_is_waited_for(
    ray: Any, tmp_path: Path
) -> None:
    """The process outlives its worker by a second, in which it finishes the step."""
    kill = "os.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(60)"
    outlive = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.kill(os.getppid(), signal.SIGKILL)"
    found = run(
        tmp_path,
        job(tmp_path, "a", "pass", once(tmp_path / "once", kill), "pass"),
        job(tmp_path, "b", f"{outlive}\ntime.sleep(1)"),
        job(tmp_path, "c", "sys.exit(1)"),
    )
    assert ends(found["a"]) == (0, 4)  # the second step twice
    assert ends(found["b"]) == (0, 1)
    assert ends(found["c"]) == (1, 1)


def test_closing_stops_what_ray_runs_even_what_does_not_listen(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "SECONDS_TO_STOP", 2.5)
    told = tmp_path / "pid"
    deaf = f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntold = pathlib.Path({str(told)!r})\n"
    deaf += "told.write_text(str(os.getpid()))\ntime.sleep(60)"
    quick = f"while not os.path.exists({str(told)!r}): time.sleep(.02)"
    outcomes = RayExecutor("auto", tmp_path).run(
        [job(tmp_path, "quick", quick), job(tmp_path, "deaf", deaf)]
    )
    assert next(outcomes).job.name == "quick"
    pid = int(wait_for(told))
    outcomes.close()
    assert ends_soon(pid, 5)


def test_an_address_where_nobody_listens_is_said_at_once(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code = (
            "import sys, pathlib; from recsys_moe.lab.jobs.ray_executor import RayExecutor\n"
            "list(RayExecutor(sys.argv[1], pathlib.Path(sys.argv[2])).run([]))"
        )
        command = [sys.executable, "-c", code, address, str(tmp_path)]
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=60
        )
    assert f"RunError: --address {address}: Connection refused" in done.stderr


LONG = """
import logging, signal, sys
from pathlib import Path
from recsys_moe.lab.jobs.executor import Job
from recsys_moe.lab.jobs.ray_executor import RayExecutor
logging.basicConfig(level="INFO")
out = Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
tell = f"import os, pathlib, time; pathlib.Path({str(out / 'pid')!r}).write_text(str(os.getpid()))"
job = Job("a", (lambda: [sys.executable, "-c", tell + "; time.sleep(90)"],), out / "a.log")
for outcome in RayExecutor(sys.argv[2], out).run([job]):
    print("not expected", outcome)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_run_is_left_after_an_interruption(
    address: str, tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", LONG, str(tmp_path), address]
    with subprocess.Popen(command, env=environment(), start_new_session=True) as process:
        try:
            pid = int(wait_for(tmp_path / "pid"))
            process.send_signal(number)
            assert process.wait(40) != 0
        finally:
            process.kill()
    assert ends_soon(pid)


@pytest.mark.parametrize(
    ("words", "kept", "counted"),
    [
        (["compare", "--routers", "topk", "--seeds", "1"], "runs", "1 of 1 runs"),
        (["tune", "--router", "topk", "--trials", "2"], "trials", "2 of 2 trials"),
    ],
)
def test_compare_and_tune_run_on_a_cluster(
    address: str, prepared: Path, tmp_path: Path, words: list[str], kept: str, counted: str
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "recsys_moe.cli", *words, "--data", str(prepared), "--json"]
    command += ["--out", str(out), "--set", f"model={json.dumps(TINY_MODEL)}", "--max-epochs", "1"]
    command += ["--engine", "ray", "--address", address]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)[kept]  # stdout holds the result alone
    assert "ray: 1 nodes" in done.stderr and counted in done.stderr
    assert all((out / one["run"] / "model" / "manifest.json").is_file() for one in found)
    assert not list(out.glob(".probe*"))
