"""What works around Lightning 2.6 (lightning.ai); each says when it can go."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lightning import LightningModule, Trainer
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.strategies import Strategy

from recsys_moe.data.columns import Batch
from recsys_moe.errors import ConfigError
from recsys_moe.train.processes.signals import handled
from recsys_moe.train.processes.starter import srun_tasks

UNTOUCHED = {"ready": 0, "started": 0, "processed": 0, "completed": 0}
BEGUN = {**UNTOUCHED, "ready": 1, "started": 1}


def quieten() -> None:
    """Keep Lightning's banners, tips and hints about workers out of our users' logs."""
    # Its SIGTERM handler logs, and a log line inside our own log line loses the signal.
    for part in ("pytorch", "fabric"):
        logging.getLogger(f"lightning.{part}").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated.*")
    warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated.*")
    # What is logged is the same in all processes already.
    warnings.filterwarnings("ignore", message=".*recommended to use .self.log.*sync_dist=True.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message="The number of training batches.*is smaller.*")
    warnings.filterwarnings("ignore", message="You're resuming from a checkpoint.*")


def leave_signals_to_us(trainer: Trainer) -> None:
    """Lightning's handlers would stop one process of several before the first step, and end with
    exit code 0; under SLURM they requeue by themselves. To go when a Trainer can be told not to."""
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    if trainer.world_size > 1:
        _let_signals_end_the_wait(trainer.strategy)


def _let_signals_end_the_wait(strategy: Strategy) -> None:
    """SIGINT and SIGTERM end a process that waits for others to join; nothing is begun then.

    Python's own handlers run only when the waiting is over, after half an hour.
    """
    connect = strategy.setup_environment

    def interruptible() -> None:
        with handled(signal.SIG_DFL):
            connect()

    strategy.setup_environment = interruptible  # type: ignore[method-assign]


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


def first_batch(trainer: Trainer) -> int:
    """Batches of the epoch that a resumed run has done already.

    Lightning would count them off by drawing them. To go when it tells a loader where to start.
    """
    loop = trainer.fit_loop  # `restarting`: resumed inside an epoch
    return int(loop.epoch_loop.batch_progress.current.ready) if loop.restarting else 0


def validate_again(checkpoint: dict[str, Any]) -> None:
    """Let a run that is saved inside a validation go back to the first batch of it.

    Lightning would go on behind it. To go when its loop resumes a validation.
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
    progress |= {"total": BEGUN, "current": UNTOUCHED, "is_last_batch": False}


class ResumableEarlyStopping(EarlyStopping):
    """Early stopping: a run that had stopped stays so, and a resumed one may be more patient.

    Lightning's own forgets the first and restores the old patience. To go when it does neither.
    """

    @property
    def state_key(self) -> str:
        """As in checkpoints of version 0.1."""
        return f"Patience{{'monitor': {self.monitor!r}, 'mode': {self.mode!r}}}"

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        waited = checkpoint["callbacks"][self.state_key]["wait_count"]
        trainer.should_stop = waited >= self.patience

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({**state_dict, "patience": self.patience})

    def waited(self, trainer: Trainer) -> int:
        """Epochs without a better one, with the one that has just been validated.

        Lightning asks it behind all others. To go when its `wait_count` is set before they speak.
        """
        value = trainer.callback_metrics[self.monitor].squeeze()
        best = self.best_score.to(value.device)
        return 0 if self.monitor_op(value - self.min_delta, best) else self.wait_count + 1


@dataclass(frozen=True)
class Padded:
    """One empty batch.

    One process without any batch would skip validation in Lightning, and the others wait for it.
    To go when its loop tolerates an empty loader.
    """

    empty: Batch

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[Batch]:
        yield self.empty
