"""Lightning's Trainer for a run: devices, strategy, callbacks, loggers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from pathlib import Path

import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy

from recsys_moe.artifact.epoch_metrics import EPOCH_METRICS
from recsys_moe.artifact.monitor import Monitor
from recsys_moe.artifact.run_folder import CHECKPOINTS
from recsys_moe.config.settings import Config
from recsys_moe.errors import ConfigError
from recsys_moe.machine import has_fast_bf16
from recsys_moe.train import workarounds
from recsys_moe.train.callbacks import Bar, EpochCsv, PlainProgress
from recsys_moe.train.checkpoints import Checkpoints
from recsys_moe.train.loggers import open_logger
from recsys_moe.train.notebook import NotebookBar, in_notebook
from recsys_moe.train.processes.starter import check_starter
from recsys_moe.train.routing_log import RoutingLog

logger = logging.getLogger("recsys_moe.fit")


def make_trainer(config: Config, out: Path, monitor: Monitor) -> lightning.Trainer:
    """The Trainer of a run at `out`; writes nothing. Raises ConfigError for missing devices."""
    settings = config.trainer
    workarounds.quieten()
    bar = sys.stderr.isatty() and not in_notebook()
    check_starter(settings.devices, settings.num_nodes)
    try:
        trainer = _build_trainer(config, out, monitor, bar)
    except MisconfigurationException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"trainer.accelerator={settings.accelerator}: {reason}") from None
    on_cpu = trainer.strategy.root_device.type == "cpu"
    if on_cpu and settings.precision == "bf16-mixed" and not has_fast_bf16():
        logger.warning(
            "trainer.precision=bf16-mixed: torch emulates bfloat16 on this processor; steps may "
            "take 10 times as long; use 32-true"
        )
    return trainer


def _build_trainer(config: Config, out: Path, monitor: Monitor, bar: bool) -> lightning.Trainer:
    settings = config.trainer
    checkpoints = Checkpoints(out / CHECKPOINTS, settings.checkpoint_every_n_steps, monitor)
    return lightning.Trainer(
        accelerator=_accelerator(settings.accelerator),
        devices=settings.devices,
        num_nodes=settings.num_nodes,
        # Buffers of routers depend on seed, data and step alone.
        strategy=DDPStrategy(broadcast_buffers=False) if settings.processes > 1 else "auto",
        use_distributed_sampler=False,
        precision=settings.precision,
        max_epochs=settings.max_epochs,
        default_root_dir=out,  # where Lightning looks for checkpoints of a requeued SLURM job
        logger=open_logger(settings.logger, out),
        callbacks=[*_callbacks(config, out, monitor, bar), checkpoints],
        plugins=[checkpoints.files, *workarounds.environments()],
        num_sanity_val_steps=0,
        log_every_n_steps=settings.log_every_n_steps,
        enable_progress_bar=bar,
        enable_model_summary=False,
    )


def _accelerator(name: str) -> str:
    """Lightning's name. Its `auto` and `gpu` may be the GPU of a Mac, which has no float64."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return {"gpu": "cuda"}.get(name, name)


def _callbacks(config: Config, out: Path, monitor: Monitor, bar: bool) -> Iterable[Callback]:
    settings = config.trainer
    yield workarounds.ResumableEarlyStopping(
        monitor.column,
        mode=monitor.direction,
        patience=settings.patience,
        min_delta=settings.min_delta,
        check_finite=True,
    )
    yield EpochCsv(out / EPOCH_METRICS)
    yield RoutingLog(out / "routing.safetensors")
    yield NotebookBar() if in_notebook() else Bar() if bar else PlainProgress()
