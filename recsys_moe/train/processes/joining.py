"""How the processes of a run find each other, what Lightning needs to hear, and how they part."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.strategies import Strategy

from recsys_moe.errors import ConfigError, RunError
from recsys_moe.train.processes.signals import handled
from recsys_moe.train.processes.starter import srun_tasks


def environments() -> list[ClusterEnvironment]:
    """What to tell Lightning about the starter of this process; empty where it finds out itself.

    Inside a job of SLURM it takes every program for one of several that srun started, and waits
    for the others; under `salloc` it does not see an srun that there is. Raises ConfigError.
    """
    if "SLURM_JOB_ID" not in os.environ or TorchElasticEnvironment.detect():
        return []
    if srun_tasks() == 1:
        return [LightningEnvironment()]
    try:
        return [SLURMEnvironment(auto_requeue=False)]
    except RuntimeError as error:
        raise ConfigError(f"srun: {' '.join(str(error).split())}") from None


def let_signals_end_the_wait(strategy: Strategy) -> None:
    """SIGINT and SIGTERM end a process that waits for others to join; nothing is begun then.

    Python's own handlers run only when the waiting is over, after half an hour.
    """
    connect = strategy.setup_environment

    def interruptible() -> None:
        with handled(signal.SIG_DFL):
            connect()

    strategy.setup_environment = interruptible  # type: ignore[method-assign]


@contextmanager
def lost_peers() -> Iterator[None]:
    """Say in words when another process of the run went away. Raises RunError."""
    try:
        yield
    except RuntimeError as error:
        if not (isinstance(error, dist.DistError) or "third_party/gloo" in str(error)):
            raise
        raise RunError(
            "another process of this run has ended or cannot be reached; what it said comes "
            "first. Then continue with --resume auto"
        ) from None
