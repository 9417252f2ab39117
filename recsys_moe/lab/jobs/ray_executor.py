"""Runs jobs on the machines of a Ray cluster; needs the extra `ray`.

The steps of a job are asked here and look at the disk, and workers write to the same disk: every
machine must see the same folders under the same paths, which a probe finds out at the start.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import closing, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import recsys_moe
from recsys_moe.errors import ConfigError, RunError
from recsys_moe.lab.jobs import executor
from recsys_moe.lab.jobs.executor import Job, Outcome, Process, run_jobs
from recsys_moe.lab.jobs.ray_cluster import check_address, connected, first_line, load_ray
from recsys_moe.lab.jobs.ray_worker import is_free, missing_on_worker, run_on_worker

logger = logging.getLogger("recsys_moe.ray_executor")
SECONDS_TO_PROBE = 120.0
"""A node may have to start a process first."""
SECONDS_FOR_LOG = 40.0
"""For the process of a lost worker to end; it saves what is finished."""
SECONDS_BETWEEN_LOOKS = 0.1
LOST = (
    *("WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "ObjectLostError"),
    *("LocalRayletDiedError", "TaskCancelledError"),
)
"""Errors of Ray that say nothing about the command."""


@dataclass(frozen=True)
class RayExecutor:
    """Commands as tasks of a cluster, each in a process of its own on some node.

    A worker or node that is lost is replaced; a command that ends with an error is not repeated.
    """

    address: str
    """`local` (a private instance on this machine), `auto` or HOST:PORT of the cluster."""
    out: Path
    """Folder that all nodes share; the logs of the jobs are in it."""
    needed: tuple[Path, ...] = ()
    """What else every node must see, such as the data."""
    limit: int | None = None
    """Commands at a time; as many as the nodes have room for without it."""
    cpus: int = 1
    """CPUs, and threads, of each command."""
    gpus: int = 0
    """GPUs of each command; without one it sees none."""
    retries: int = 2
    """How often a step is tried again after its worker was lost."""

    def __post_init__(self) -> None:
        check_address(self.address)
        for option, value in (("--cpus-per-run", self.cpus - 1), ("--gpus-per-run", self.gpus)):
            if value < 0:
                raise ConfigError(f"{option} is too small; leave it out for 1 CPU and no GPU")

    def run(self, jobs: Iterable[Job]) -> Generator[Outcome]:
        """See Executor. Raises ConfigError and RunError before the first job.

        Until it is closed, what is printed goes to stderr: Ray prints messages of its own.
        """
        ray = load_ray(self.address)
        with connected(ray, self.address), redirect_stdout(sys.stderr):
            nodes = _fitting(ray.nodes(), self.cpus, self.gpus)
            _probe(ray, nodes, self)
            places = sum(_places(node, self.cpus, self.gpus) for node in nodes)
            task = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0)(run_on_worker)
            cluster = _Cluster(ray, self, min(places, self.limit or places), task)
            logger.info("ray: %d nodes, %d runs at a time", len(nodes), cluster.workers)
            with closing(run_jobs(cluster, map(_once_free, jobs))) as outcomes:
                yield from outcomes


def _places(node: dict[str, Any], cpus: int, gpus: int) -> int:
    """Commands that a node has room for at a time."""
    resources = node["Resources"]
    places = int(resources.get("CPU", 0)) // cpus
    return min(places, int(resources.get("GPU", 0)) // gpus) if gpus else places


def _fitting(nodes: list[dict[str, Any]], cpus: int, gpus: int) -> list[dict[str, Any]]:
    """Nodes with room for a command. Raises ConfigError where there is none: it would wait."""
    fitting = [node for node in nodes if node["Alive"] and _places(node, cpus, gpus)]
    if not fitting:
        raise ConfigError(
            f"--engine ray: no node has {cpus} CPUs and {gpus} GPUs; "
            "lower --cpus-per-run and --gpus-per-run, or add nodes"
        )
    return fitting


def _probe(ray: Any, nodes: list[dict[str, Any]], asked: RayExecutor) -> None:
    """Raise RunError naming a node that sees other folders or has another version."""
    asked.out.mkdir(parents=True, exist_ok=True)
    probe = asked.out.resolve() / f".probe-{os.getpid()}-{time.time_ns()}"
    needed = [str(path.resolve()) for path in (probe, *asked.needed, Path.cwd())]
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    task = ray.remote(num_cpus=0, max_retries=0)(missing_on_worker)
    try:
        probe.touch()
        answers = {
            task.options(scheduling_strategy=affinity(node["NodeID"], soft=False)).remote(
                needed, recsys_moe.__version__
            ): node["NodeManagerAddress"]
            for node in nodes
        }
        _, late = ray.wait(list(answers), num_returns=len(answers), timeout=SECONDS_TO_PROBE)
        for answer, name in answers.items():
            _check_answer(ray, name, None if answer in late else answer, asked.out)
    finally:
        probe.unlink(missing_ok=True)


def _check_answer(ray: Any, name: str, answer: Any, out: Path) -> None:
    try:
        missing = "no answer" if answer is None else ray.get(answer)
    except ray.exceptions.RayError as error:
        missing = f"{first_line(error)}; install the same recsys-moe there"
    if ".probe-" in (missing or ""):
        missing = f"it does not see {out.resolve()}; --out must be on a disk that all nodes share"
    if missing:
        raise RunError(f"--engine ray: node {name}: {missing}")


@dataclass(frozen=True)
class _Cluster:
    """A Launcher: each command is a task, which Ray itself never repeats."""

    ray: Any
    asked: RayExecutor
    workers: int
    task: Any
    """`run_on_worker` as a task."""

    @property
    def retries(self) -> int:
        return self.asked.retries

    def launch(self, command: list[str], log: Path) -> Process:
        log.parent.mkdir(parents=True, exist_ok=True)
        # Less time than `stop` leaves the task, so that the worker has stopped its process by then.
        limits = self.asked.cpus, self.asked.gpus, executor.SECONDS_TO_STOP * 0.8
        paths = str(log.resolve()), os.getcwd()
        return _Task(self.ray, self.task.remote(command, sys.executable, *paths, *limits), log)


class _Task:
    """A task under way, in the form of a process."""

    def __init__(self, ray: Any, reference: Any, log: Path) -> None:
        self.ray, self.reference, self.log = ray, reference, log
        self.code: int | None = None
        self.ended = 0.0

    def poll(self) -> int | None:
        if self.code is None and self.ray.wait([self.reference], timeout=0)[0]:
            self.code, self.ended = self._result(), time.monotonic()
        # What a lost worker has left may still write: the next step has to see the end of it.
        is_lost = self.code == -signal.SIGKILL
        if is_lost and time.monotonic() - self.ended < SECONDS_FOR_LOG and not is_free(self.log):
            return None
        return self.code

    def _result(self) -> int:
        """The exit code; that of a killed process for a lost worker, 1 where none was started."""
        try:
            return int(self.ray.get(self.reference))
        except tuple(getattr(self.ray.exceptions, name) for name in LOST) as error:
            logger.warning("ray: %s", first_line(error))
            return -signal.SIGKILL
        except self.ray.exceptions.RayTaskError as error:
            logger.error("ray: %s", first_line(getattr(error, "cause", error)))
            return 1

    def terminate(self) -> None:
        self.ray.cancel(self.reference, force=False)

    def kill(self) -> None:
        self.ray.cancel(self.reference, force=True)

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (executor.SECONDS_TO_STOP if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > deadline and timeout is not None:
                raise subprocess.TimeoutExpired("ray task", timeout)
            if time.monotonic() > deadline:
                return -signal.SIGKILL  # its node does not answer any more
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return code


def _once_free(job: Job) -> Job:
    """The job when nothing writes to its log any more. Raises RunError when that takes long."""
    deadline = time.monotonic() + SECONDS_FOR_LOG
    while not is_free(job.log):
        if time.monotonic() > deadline:
            raise RunError(f"{job.log} is written by a run on some node; wait for it or stop it")
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return job
