"""Workarounds for Lightning 2.6 (lightning.ai); each says when it can go."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from typing import Any

from lightning import LightningModule, Trainer
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities.compile import to_uncompiled

from recsys_moe.errors import ConfigError
from recsys_moe.train.processes.signals import handled
from recsys_moe.train.processes.starter import srun_tasks

UNTOUCHED = {"ready": 0, "started": 0, "processed": 0, "completed": 0}
BEGUN = {**UNTOUCHED, "ready": 1, "started": 1}


def quieten() -> None:
    """Keep Lightning's banners, tips and hints about workers out of our users' logs."""
    # Its SIGTERM handler logs; inside another log call that loses the signal.
    for part in ("pytorch", "fabric"):
        logging.getLogger(f"lightning.{part}").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated.*")
    warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated.*")
    # Logged values are the same in all processes already.
    warnings.filterwarnings("ignore", message=".*recommended to use .self.log.*sync_dist=True.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message="The number of training batches.*is smaller.*")


def disable_signal_handlers(trainer: Trainer) -> None:
    """Lightning's handlers would stop one process of several before the first step, end with exit
    code 0, and requeue under SLURM. To go when a Trainer has a setting for it."""
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
    if trainer.world_size > 1:
        _let_signals_end_the_wait(trainer.strategy)


def _let_signals_end_the_wait(strategy: Strategy) -> None:
    """SIGINT and SIGTERM end a process that waits for others to join, where nothing has begun.

    Python's own handlers run only after the wait, half an hour later.
    """
    connect = strategy.setup_environment

    def interruptible() -> None:
        with handled(signal.SIG_DFL):
            connect()

    strategy.setup_environment = interruptible  # type: ignore[method-assign]


def environments() -> list[ClusterEnvironment]:
    """Lightning's plugin for the starter of this process; empty where Lightning detects it.

    In a SLURM job it takes every program for one of several of srun and waits for the others;
    under `salloc` it does not detect srun. Raises ConfigError.
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
    """Batches of the epoch that a resumed run has finished; Lightning would load them again.

    To go when Lightning passes a loader its first batch.
    """
    loop = trainer.fit_loop  # `restarting`: resumed inside an epoch
    return int(loop.epoch_loop.batch_progress.current.ready) if loop.restarting else 0


def compile_model_alone(module: LightningModule) -> None:
    """Of a module that the Trainer got from torch.compile, compile only the model.

    Lightning compiles the steps, which hold counters of its loop: they would be compiled anew at
    every step. To go when a module can say what is compiled.
    """
    if (compiled := module._compiler_ctx) is not None:
        to_uncompiled(module)
        model = module.model
        model._compiled_call_impl = compiled["dynamo_ctx"](model._call_impl)  # type: ignore


def check_not_for_cli(empty: LightningModule) -> None:
    """Raise ConfigError where LightningCLI, for its --optimizer, asks for the parameters of a
    module that has none before it knows the data. To go when it waits for them."""
    frame = sys._getframe(2)
    if frame.f_code.co_name == "_add_configure_optimizers_method_to_model":
        given = frame.f_locals.get("optimizer_init", {}).get("class_path", "one")
        name = type(empty).__name__
        raise ConfigError(
            f"--optimizer must not be given for {name}, which makes its optimizer when it knows "
            f"the data, got {given}; set model.config.optim, e.g. --model.config.optim.lr=0.001, "
            f"or override configure_optimizers in a subclass of {name}"
        )


def makes_step(trainer: Trainer) -> bool:
    """Does the batch in progress end a step? With accumulate_grad_batches not every one does.

    To go when a Trainer tells.
    """
    return not trainer.fit_loop._should_accumulate()


def steps_per_epoch(trainer: Trainer) -> int:
    """To go when a Trainer tells."""
    batches = int(trainer.num_training_batches)
    return max(-(-batches // trainer.accumulate_grad_batches), 1)


def validate_again(checkpoint: dict[str, Any]) -> None:
    """Let a run that is saved inside a validation restart it; Lightning would skip it.

    To go when Lightning resumes a validation.
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
    progress |= {"total": BEGUN, "current": UNTOUCHED, "is_last_batch": False}


class ResumableEarlyStopping(EarlyStopping):
    """Early stopping of resumed runs: a stopped one stays stopped, unless patience is raised.

    Lightning's own continues, and restores the old patience. To go when it does neither.
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
        """Epochs without a better one, with the epoch that has just been validated.

        To go when Lightning updates `wait_count` before other callbacks run.
        """
        value = trainer.callback_metrics[self.monitor].squeeze()
        best = self.best_score.to(value.device)
        return 0 if self.monitor_op(value - self.min_delta, best) else self.wait_count + 1
