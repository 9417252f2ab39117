"""Jobs on a cluster: again where a worker is lost, never where a command fails.

Without Ray: a stand-in has threads for workers. tests/lab/jobs/test_ray.py has the real one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recsys_moe.errors import ConfigError, RunError
from recsys_moe.lab.jobs.engines import choose_executor
from recsys_moe.lab.jobs.executor import Job, Outcome, is_free
from recsys_moe.lab.jobs.ray_cluster import check_address
from recsys_moe.lab.jobs.ray_executor import RayExecutor, missing_on_worker, worker_environment
from tests.lab.jobs.commands import ends, job


def run(out: Path, *jobs: Job, **options: Any) -> dict[str, Outcome]:
    found = RayExecutor("auto", out, **options).run(jobs)
    return {outcome.job.name: outcome for outcome in found}


# What is asked for


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379", "head.lan:1", "[::1]:65535"])
def test_an_address_is_accepted(address: str) -> None:
    check_address(address)


@pytest.mark.parametrize(
    "address",
    ["", "head", "head:0", "head:65536", "head:6379/x", "a b:1", "ray://head:10001", "-x", "local"],
)
def test_what_is_no_address_is_refused_with_the_remedy(address: str) -> None:
    with pytest.raises(ConfigError, match="--address") as caught:
        check_address(address)
    assert "auto" in str(caught.value) and "\n" not in str(caught.value)


def test_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_executor("local", None, tmp_path) is None
    for arguments, message in (
        (("spark", None), "--engine .*local, ray, got 'spark'"),
        (("local", "auto"), "--address needs --engine ray"),
        (("ray", None), "--engine ray needs --address"),
        (("ray", "nowhere"), "--address .*HOST:PORT.*nowhere"),
    ):
        with pytest.raises(ConfigError, match=message):
            choose_executor(*arguments, tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs ray: pip install 'recsys-moe\[ray\]'$"):
        choose_executor("ray", "auto", tmp_path)


def test_a_run_gets_its_threads_and_nothing_that_describes_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RAY_AUTH_TOKEN", "SLURM_PROCID", "RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("KEPT", "yes")
    found = worker_environment(2, 0)
    assert (found["OMP_NUM_THREADS"], found["MKL_NUM_THREADS"], found["KEPT"]) == ("2", "2", "yes")
    assert "7" not in found.values() and found["CUDA_VISIBLE_DEVICES"] == ""
    assert worker_environment(2, 1)["CUDA_VISIBLE_DEVICES"] == "3"


def test_a_worker_says_what_it_lacks(tmp_path: Path) -> None:
    from recsys_moe import __version__

    assert missing_on_worker([str(tmp_path)], __version__) is None
    missing = missing_on_worker([str(tmp_path), "/nowhere/data"], __version__)
    assert missing and "/nowhere/data" in missing
    assert "recsys-moe must be 0.0.0, got" in (missing_on_worker([], "0.0.0") or "")


# What becomes of tasks, without Ray


class Crash(Exception):
    pass


class Threads:
    """As much of Ray as is used, with threads for workers. `loses`: tasks that are lost first."""

    def __init__(self, loses: int = 0) -> None:
        self.loses, self.pool = loses, ThreadPoolExecutor(2)
        self.started: list[str] = []
        lost = ("WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "ObjectLostError")
        lost += ("LocalRayletDiedError", "TaskCancelledError")
        self.exceptions = SimpleNamespace(**dict.fromkeys(lost, Crash), RayError=Exception)
        self.exceptions.RayTaskError = OSError
        self.exceptions.RaySystemError = self.exceptions.RpcError = Crash
        affinity = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
        self.util = SimpleNamespace(scheduling_strategies=affinity)

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        node = {"Alive": True, "NodeID": "a", "NodeManagerAddress": "10.0.0.7"}
        return [
            {**node, "Resources": {"CPU": 2.0}},
            {**node, "Alive": False, "Resources": {"CPU": 64.0}},
        ]

    def remote(self, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        def task(function: Callable[..., Any]) -> Any:
            def submit(*words: Any) -> Future[Any]:
                return self.pool.submit(self.call, function, *words)

            return SimpleNamespace(remote=submit, options=lambda **_: task(function))

        return task

    def call(self, function: Callable[..., Any], *words: Any) -> Any:
        self.started.append(function.__name__)
        if function.__name__ == "run_on_worker" and self.loses:
            self.loses -= 1
            raise Crash("the node died")
        return function(*words)

    def wait(self, tasks: list[Any], num_returns: int = 1, timeout: float = 0) -> Any:
        return [list(found) for found in wait(tasks, timeout)]

    def get(self, task: Future[Any]) -> Any:
        return task.result()


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    """Stands in for the module `ray`."""
    ray = Threads()
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    return ray


def test_a_lost_worker_is_replaced_twice_and_finished_steps_stay(
    threads: Threads, tmp_path: Path
) -> None:
    (tmp_path / "a-0").touch()
    threads.loses = 2
    found = run(tmp_path, job(tmp_path, "a", "sys.exit(9)", "print('ran', os.getcwd())", "pass"))
    # the first step is done before; the second is lost twice; the third runs once
    assert ends(found["a"]) == (0, 4)
    log = (tmp_path / "logs" / "a.log").read_text()
    assert f"ran {Path.cwd()}" in log and log.count("$ ") == 2


def test_a_command_that_cannot_start_on_the_worker_is_a_failure(
    threads: Threads, tmp_path: Path
) -> None:
    nothing = Job("a", (lambda: [str(tmp_path / "nowhere")],), tmp_path / "logs" / "a.log")
    assert ends(run(tmp_path, nothing)["a"]) == (1, 1)


def test_a_node_that_does_not_see_the_folders_is_named_before_anything_runs(
    threads: Threads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunError, match="node 10.0.0.7: .*nowhere is missing"):
        run(tmp_path, job(tmp_path, "a", "pass"), needed=(tmp_path / "nowhere",))
    exists = Path.exists
    monkeypatch.setattr(Path, "exists", lambda path: ".probe-" not in path.name and exists(path))
    with pytest.raises(RunError, match=rf"{tmp_path}.* --out"):
        run(tmp_path, job(tmp_path, "a", "pass"))
    assert set(threads.started) == {"missing_on_worker"} and not list(tmp_path.iterdir())


def test_what_no_node_has_room_for_is_refused(threads: Threads, tmp_path: Path) -> None:
    for options in ({"cpus": 3}, {"gpus": 1}):
        with pytest.raises(ConfigError, match="no node has . CPUs and . GPUs.*--cpus-per-"):
            run(tmp_path, job(tmp_path, "a", "pass"), **options)


def test_a_job_waits_for_the_process_that_still_writes_its_log(
    threads: Threads, tmp_path: Path
) -> None:
    """As one does that an interrupted command has left on another node."""
    left = job(tmp_path, "a", "pass")
    left.log.parent.mkdir()
    code = f"""import fcntl, pathlib, sys, time
stream = open({str(left.log)!r}, 'ab')
fcntl.flock(stream, fcntl.LOCK_EX)
print('locked', flush=True)
time.sleep(1)
pathlib.Path({str(tmp_path / "a-0")!r}).touch()"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"locked\n"
        assert not is_free(left.log)
        assert ends(run(tmp_path, left)["a"]) == (0, 0)  # it finished the step
    assert is_free(left.log)
