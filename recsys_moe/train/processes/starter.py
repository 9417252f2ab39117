"""The starter and rank of this process, by the variables of torchrun, srun and `run_workers`.

Standard library only.
"""

from __future__ import annotations

import os

from recsys_moe.errors import ConfigError

FOREIGN = ("RAY_", "SLURM_", "TORCHELASTIC_", "RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK")
"""Prefixes of variables that describe this process, not those that it starts."""


def rank() -> int:
    """Rank of this process in the run; 0 for a single one."""
    names = ("RANK", "SLURM_PROCID", "LOCAL_RANK") if srun_tasks() > 1 else ("RANK", "LOCAL_RANK")
    return next((int(os.environ[n]) for n in names if os.environ.get(n, "").isdigit()), 0)


def srun_tasks() -> int:
    """Number of processes of the srun that started this one; 1 without srun.

    SLURM_NTASKS and, in batch scripts, SLURM_PROCID are also set without srun.
    """
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "")
    return int(tasks) if tasks.isdigit() else 1


def is_started_outside() -> bool:
    """Was this process started by torchrun, `run_workers` or an srun of several?"""
    return "LOCAL_RANK" in os.environ or srun_tasks() > 1


def check_starter(devices: int, num_nodes: int) -> None:
    """Raise ConfigError where torchrun or srun started another number of processes."""
    for starter, name in (("torchrun", "WORLD_SIZE"), ("srun", "SLURM_STEP_NUM_TASKS")):
        if is_started_outside() and os.environ.get(name, "").isdigit():
            found = int(os.environ[name])
            if found != devices * num_nodes:
                raise ConfigError(
                    f"trainer.devices={devices} x trainer.num_nodes={num_nodes} must be the number "
                    f"of processes of {starter}, got {found}; pass --devices and --num-nodes"
                )
            return


def inherited() -> dict[str, str]:
    """The environment without the variables that describe this process."""
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
