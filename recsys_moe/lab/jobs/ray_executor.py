"""Runs jobs on the machines of a Ray cluster; needs the extra `ray`.

Steps look at the disk here and workers write to the same disk: every machine must have the same
folders under the same paths, which a probe checks at the start.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import closing, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import recsys_moe
from recsys_moe.errors import ConfigError, RunError
from recsys_moe.lab.jobs import executor
from recsys_moe.lab.jobs.executor import (
    SECONDS_BETWEEN_LOOKS,
    Job,
    Outcome,
    Process,
    is_free,
    run_jobs,
    start,
    stop,
)
from recsys_moe.lab.jobs.ray_cluster import connected, first_line, load_ray
from recsys_moe.train.processes.starter import inherited

logger = logging.getLogger("recsys_moe.ray_executor")
SECONDS_TO_PROBE = 120.0
"""A node may have to start a process first."""
SECONDS_FOR_LOG = 40.0
"""For the process of a lost worker to end; it saves what is finished."""
LOST = (
    *("WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "ObjectLostError"),
    *("LocalRayletDiedError", "TaskCancelledError"),
)
"""Errors of Ray that are not errors of the command."""


@dataclass(frozen=True)
class RayExecutor:
    """Runs each command as a task in its own process on a node.

    A lost worker or node is replaced; a failed command is not repeated.
    """

    address: str
    """`auto` or HOST:PORT of the cluster."""
    out: Path
    """Folder that all nodes share; the logs of the jobs are in it."""
    needed: tuple[Path, ...] = ()
    """Other paths that every node needs, such as the data."""
    limit: int | None = None
    """Commands at a time; None: as many as fit on the nodes."""
    cpus: int = 1
    """CPUs, and threads, of each command."""
    gpus: int = 0
    """GPUs of each command; 0 hides all of them."""
    retries: int = 2
    """Retries of a step whose worker was lost."""

    def run(self, jobs: Iterable[Job]) -> Generator[Outcome]:
        """See Executor. Raises ConfigError and RunError before the first job.

        Until it is closed, stdout goes to stderr: Ray prints its own messages.
        """
        ray = load_ray()
        with connected(ray, self.address), redirect_stdout(sys.stderr):
            nodes = _fitting(ray.nodes(), self.cpus, self.gpus)
            _probe(ray, nodes, self)
            places = sum(_places(node, self.cpus, self.gpus) for node in nodes)
            workers = min(places, self.limit or places)
            logger.info("ray: %d nodes, %d runs at a time", len(nodes), workers)
            task = ray.remote(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0)(run_on_worker)
            jobs, launch = map(_once_free, jobs), partial(self._launch, ray, task)
            with closing(run_jobs(launch, jobs, workers=workers, retries=self.retries)) as outcomes:
                yield from outcomes

    def _launch(self, ray: Any, task: Any, command: list[str], log: Path) -> Process:
        """See Launch. `task`: run_on_worker as one, which Ray itself never repeats."""
        log.parent.mkdir(parents=True, exist_ok=True)
        # Less time than `stop` leaves the task, so that the worker has stopped its process by then.
        limits = self.cpus, self.gpus, executor.SECONDS_TO_STOP * 0.8
        paths = str(log.resolve()), os.getcwd()
        return _Task(ray, task.remote(command, sys.executable, *paths, *limits), log)


def _places(node: dict[str, Any], cpus: int, gpus: int) -> int:
    """Commands that fit on a node at a time."""
    resources = node["Resources"]
    places = int(resources.get("CPU", 0)) // cpus
    return min(places, int(resources.get("GPU", 0)) // gpus) if gpus else places


def _fitting(nodes: list[dict[str, Any]], cpus: int, gpus: int) -> list[dict[str, Any]]:
    """Nodes that fit a command. Raises ConfigError without any: Ray would wait."""
    fitting = [node for node in nodes if node["Alive"] and _places(node, cpus, gpus)]
    if not fitting:
        raise ConfigError(
            f"--engine ray: no node has {cpus} CPUs and {gpus} GPUs; "
            "lower --cpus-per-run and --gpus-per-run, or add nodes"
        )
    return fitting


def _probe(ray: Any, nodes: list[dict[str, Any]], asked: RayExecutor) -> None:
    """Raise RunError naming a node with other folders or another version."""
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
        missing = f"{out.resolve()} is missing; --out must be on a disk that all nodes share"
    if missing:
        raise RunError(f"--engine ray: node {name}: {missing}")


class _Task:
    """A running task, with the interface of a process."""

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
        """The exit code; -SIGKILL for a lost worker, 1 if no process was started."""
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


def _once_free(job: Job) -> Job:
    """The job, once no process writes to its log. Raises RunError on a timeout."""
    deadline = time.monotonic() + SECONDS_FOR_LOG
    while not is_free(job.log):
        if time.monotonic() > deadline:
            raise RunError(f"{job.log} is in use by a run on some node; wait for it or stop it")
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return job


# On a worker


def missing_on_worker(needed: list[str], version: str) -> str | None:
    """On a worker: what is missing there, in words."""
    if recsys_moe.__version__ != version:
        return f"recsys-moe must be {version}, got {recsys_moe.__version__}; install the same there"
    unseen = [path for path in needed if not Path(path).exists()]
    return f"{unseen[0]} is missing; all nodes must share that folder" if unseen else None


def run_on_worker(
    command: list[str], python: str, log: str, folder: str, cpus: int, gpus: int, grace: float
) -> int:
    """On a worker: run a command, or stop it if the task is cancelled.

    `python`: the interpreter in the command, replaced by the worker's own. The output goes to
    `log`, whose folder must be there; `grace`: seconds to end in when asked to. Returns the exit
    code, negative for a signal.
    """
    if not Path(log).parent.is_dir():
        raise FileNotFoundError(f"{Path(log).parent} is not on this node: it must be shared")
    own = [sys.executable if word == python else word for word in command]
    process = start(own, Path(log), cwd=folder, env=worker_environment(cpus, gpus))
    try:
        while process.poll() is None:
            time.sleep(SECONDS_BETWEEN_LOOKS)
    finally:
        stop([process], grace)
    return process.returncode


def worker_environment(cpus: int, gpus: int) -> dict[str, str]:
    """The worker's environment without its own variables, with limits."""
    limits = {"OMP_NUM_THREADS": str(cpus), "MKL_NUM_THREADS": str(cpus)}
    return {**inherited(), **limits, **({} if gpus else {"CUDA_VISIBLE_DEVICES": ""})}
