"""fit: from a prepared folder and a configuration to a run folder with an artifact."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning

from recsys_moe.artifact.monitor import find_monitor
from recsys_moe.artifact.run_folder import (
    CHECKPOINTS,
    LAST,
    begin_run,
    end_run,
    place_of,
    record_run,
)
from recsys_moe.config.files import merge
from recsys_moe.config.settings import Config, weighed_apart
from recsys_moe.errors import ConfigError, Interrupted, RunError
from recsys_moe.schema import Task
from recsys_moe.train import workarounds
from recsys_moe.train.checkpoints import Checkpoints
from recsys_moe.train.ending import finish_run
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.loggers import check_logger, closing_logger
from recsys_moe.train.module import RecModule
from recsys_moe.train.processes.devices import lost_peers
from recsys_moe.train.processes.memory import flushed_denormals, kept_memory
from recsys_moe.train.resume import belongs_to, check_resume, find_checkpoint
from recsys_moe.train.start import Start, open_start, set_up, start_config
from recsys_moe.train.start_checks import check_alone, check_begun
from recsys_moe.train.trainer import make_trainer

logger = logging.getLogger("recsys_moe.fit")


@flushed_denormals()
def fit(
    config: Config | dict[str, Any],
    data: str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    resume: str | None = None,
    start_from: str | Path | None = None,
) -> dict[str, Any]:
    """Train, keep the best checkpoint by `trainer.monitor`, save its artifact and evaluation.

    `config`: validated, or its sections as a configuration file holds them. `data`: a prepared
    folder. `resume`: None, `auto` (the newest good checkpoint of `out`, or the beginning where
    there is none yet) or a path. `start_from`: a run or model folder whose weights a new run starts
    from; the sections of `config` then go over the model's own.
    Returns the evaluation of the best model on the validation split; on several devices the first
    process does, the others return {}. Raises ConfigError, DataError, RunError and Interrupted.
    """
    check_alone(start_from, resume)
    config = config if isinstance(config, Config) else start_config(config, start_from)
    data, out = Path(data), Path(out)
    datamodule, module, start = _opened(config, data, start_from)
    place = place_of(out, overwrite, resume)
    monitor = find_monitor(config.trainer.monitor, datamodule.schema)
    trainer = make_trainer(config, place, monitor)  # before anything there is touched
    checkpoint = None if resume is None else _checkpoint(config, data, place, resume)
    set_up(module, datamodule, start, bare=checkpoint is not None)
    is_new = checkpoint is None or not belongs_to(checkpoint, place)
    if trainer.is_global_zero and is_new:
        origin: dict[str, Any] = {"checkpoint": checkpoint, "start": start and start.record}
        begin_run(place, out, config, data, resume=resume, **origin)
    elif trainer.is_global_zero:
        record_run(place, config, data)
    if trainer.is_global_zero and place != out:
        logger.info("the run is made in %s; %s stays as it is until that is whole", place, out)
    with _removed_where_refused(place if trainer.is_global_zero and is_new else None):
        _run(trainer, module, datamodule, checkpoint)
    if not trainer.is_global_zero:
        return {}
    result = finish_run(module, datamodule, data, place)
    end_run(place, out, data)
    return result


def _opened(
    config: Config, data: Path, start_from: str | Path | None
) -> tuple[RecDataModule, RecModule, Start | None]:
    """The data, a model that knows them, and the one that its weights start from."""
    datamodule = RecDataModule(data, config)
    start = open_start(start_from, config, datamodule.schema, data)
    module = RecModule(config.model_dump(mode="json"), datamodule.schema.to_json())
    _say_weights(config, datamodule.schema.tasks)
    datamodule.open()
    return datamodule, module, start


def _say_weights(config: Config, tasks: Sequence[Task]) -> None:
    """Where training minimises another loss than the one that judges, the log has both."""
    if (apart := weighed_apart(config, tasks)) is not None:
        logger.info(
            "training minimises %s (tasks.TASK.training_weight); results are judged by %s", *apart
        )


@contextmanager
def _removed_where_refused(place: Path | None) -> Iterator[None]:
    """A run that is found impossible before its first checkpoint leaves no folder."""
    try:
        yield
    except ConfigError:
        if place is not None and not (place / CHECKPOINTS / LAST).exists():
            shutil.rmtree(place)
        raise


def _checkpoint(config: Config, data: Path, out: Path, resume: str) -> Path | None:
    """What to continue from. Raises ConfigError and DataError when it does not fit."""
    saved = find_checkpoint(out, resume)
    if saved is None:
        check_begun(out)
        return None
    check_resume(saved, config, data)
    logger.info("continuing from %s: %d epochs are finished", saved.path, saved.finished)
    return saved.path


def _run(
    trainer: lightning.Trainer,
    module: RecModule,
    datamodule: RecDataModule,
    checkpoint: Path | None,
) -> None:
    """Lightning's loop. Raises Interrupted on SIGINT and SIGTERM, RunError on full disks."""
    checkpoints = trainer.checkpoint_callback
    assert isinstance(checkpoints, Checkpoints)
    workarounds.leave_signals_to_us(trainer)
    try:
        with (
            checkpoints.stop.listening(),
            kept_memory(),
            lost_peers(),
            closing_logger(trainer.logger),
        ):
            trainer.fit(module, datamodule=datamodule, ckpt_path=checkpoint, weights_only=True)
    except OSError as error:
        remedy = "make room or make it writable, then continue with --resume auto"
        where = error.filename or checkpoints.folder.parent
        raise RunError(f"{where}: {error.strerror or error}; {remedy}") from None
    if checkpoints.stop.number:
        message = f"interrupted; all is saved in {checkpoints.folder}: continue with --resume auto"
        raise Interrupted(message, checkpoints.stop.number)


def dry_run(config: Config, data: Path, start_from: str | Path | None = None) -> dict[str, Any]:
    """Open the data, build the model, run one step on one batch; write nothing."""
    datamodule = RecDataModule(Path(data), config)
    find_monitor(config.trainer.monitor, datamodule.schema)
    check_logger(config.trainer.logger)
    alone = merge(config.model_dump(mode="json"), {"trainer": {"devices": 1, "num_nodes": 1}})
    start = open_start(start_from, config, datamodule.schema, Path(data))
    module = RecModule(alone, datamodule.schema.to_json())
    set_up(module, datamodule, start)
    batches = datamodule.train_dataloader()
    batch = next(iter(batches))
    begun = time.perf_counter()
    loss, penalties = module.batch_losses(batch)
    (loss + penalties).backward()
    seconds = time.perf_counter() - begun
    return {
        "parameters": sum(p.numel() for p in module.parameters()),
        "rows": len(datamodule.rows("train")),
        "steps_per_epoch": len(batches),
        "loss_of_first_batch": loss.item(),
        "seconds_of_first_step": round(seconds, 3),
    }
