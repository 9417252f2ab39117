"""Chooses the executor of `compare` and `tune`: local processes or a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from recsys_moe.errors import ConfigError
from recsys_moe.lab.jobs.executor import Executor
from recsys_moe.lab.jobs.ray_cluster import check_address, load_ray
from recsys_moe.lab.jobs.ray_executor import RayExecutor

ENGINES = ("local", "ray")


def choose_executor(
    engine: str,
    address: str | None,
    out: Path,
    *,
    needed: Sequence[Path] = (),
    jobs: int | None = None,
    cpus: int | None = None,
    gpus: int | None = None,
) -> Executor | None:
    """The executor of `--engine`, or None for `local`, where the caller uses local processes.

    `out`: the folder that all nodes share; `needed`: other paths they need, such as the data;
    `jobs`: runs at a time; `cpus` and `gpus`: of each run, 1 and 0 by default.
    Raises ConfigError.
    """
    if engine not in ENGINES:
        raise ConfigError(f"--engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    options = {"--address": address, "--cpus-per-run": cpus, "--gpus-per-run": gpus}
    if engine == "local":
        for option, value in options.items():
            if value is not None:
                raise ConfigError(f"{option} needs --engine ray, got --engine local; leave it out")
        return None
    if address is None:
        raise ConfigError("--engine ray needs --address: auto or HOST:PORT")
    if jobs is not None and jobs < 1:
        raise ConfigError(f"--jobs must be at least 1, got {jobs}; omit it to fill the cluster")
    check_address(address)
    load_ray()
    return RayExecutor(address, Path(out), tuple(needed), jobs, cpus or 1, gpus or 0)
