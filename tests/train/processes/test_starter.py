"""The starter of a process: torchrun, srun, `run_workers` or none, by their variables."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment

from recsys_moe.errors import ConfigError, RunError
from recsys_moe.lab.jobs.executor import LocalExecutor
from recsys_moe.train.processes import starter
from recsys_moe.train.processes.devices import lost_peers
from recsys_moe.train.workarounds import environments

BATCH_SCRIPT = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
"""What a program finds that a batch script calls without srun."""
SRUN = {**BATCH_SCRIPT, "SLURM_PROCID": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(starter.FOREIGN):
            monkeypatch.delenv(name)


def setenv(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "rank", "outside"),
    [
        ({}, 0, False),
        (TORCHRUN, 3, True),  # ours too
        (SRUN, 2, True),
        ({**SRUN, **TORCHRUN}, 3, True),  # torchrun in a job: its own ranks count
        (BATCH_SCRIPT, 0, False),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, 0, False),  # a shell by srun
    ],
)
def test_the_rank_is_what_the_starter_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], rank: int, outside: bool
) -> None:
    setenv(monkeypatch, variables)
    assert (starter.rank(), starter.is_started_outside()) == (rank, outside)


@pytest.mark.parametrize(("variables", "name"), [(TORCHRUN, "torchrun"), (SRUN, "srun")])
def test_a_starter_with_another_number_of_processes_is_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str
) -> None:
    starter.check_starter(1, 1)
    setenv(monkeypatch, variables)
    starter.check_starter(2, 2)
    with pytest.raises(ConfigError, match=f"{name}, got 4"):
        starter.check_starter(2, 1)


def test_lightning_waits_for_others_only_where_srun_started_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert environments() == []  # it finds out itself
    setenv(monkeypatch, BATCH_SCRIPT)
    (alone,) = environments()
    assert type(alone) is LightningEnvironment
    setenv(monkeypatch, {**SRUN, "SLURM_JOB_NAME": "interactive"})  # srun under salloc
    with pytest.raises(ConfigError, match="srun: .*--ntasks-per-node"):
        environments()
    setenv(monkeypatch, {"SLURM_NTASKS_PER_NODE": "4"})
    (step,) = environments()
    assert isinstance(step, SLURMEnvironment) and not step.auto_requeue
    assert (step.world_size(), step.global_rank()) == (4, 2)


def test_runs_that_are_started_here_do_not_take_our_place_for_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    setenv(monkeypatch, {**SRUN, **TORCHRUN, "HOME": "/home/own"})
    environment = LocalExecutor(workers=1, threads=1).environment()
    assert environment["HOME"] == "/home/own"
    assert not [name for name in environment if name.startswith(starter.FOREIGN)]


def test_a_lost_peer_is_named_and_other_errors_stay() -> None:
    gloo = "[third_party/gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1"
    with pytest.raises(RunError, match="another process of this run has ended"), lost_peers():
        raise RuntimeError(gloo)
    with pytest.raises(RuntimeError, match="shape"), lost_peers():
        raise RuntimeError("shape")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_process_that_waits_for_others_to_join(
    prepared: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    first_of_two = {
        **starter.inherited(), "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "NODE_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }  # fmt: skip
    command = [sys.executable, "-m", "recsys_moe.cli", "fit", "--data", str(prepared)]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "run"), "--devices", "2"], env=first_of_two
    )
    try:
        wait_for_listener(int(port))
        process.send_signal(number)
        assert process.wait(10) == -number
    finally:
        process.kill()
        process.wait()


def wait_for_listener(port: int) -> None:
    """The first process listens for the others before it waits for them."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("nobody listens")
