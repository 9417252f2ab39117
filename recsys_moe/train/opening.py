"""Opens and checks what `fit` and its dry run are asked for, before anything is written."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import lightning
from torch import nn

from recsys_moe import machine
from recsys_moe.artifact.monitor import find_monitor
from recsys_moe.artifact.run_folder import check_begin, place_of
from recsys_moe.config.files import read_config_file
from recsys_moe.config.settings import Config, parse_config, weighed_apart
from recsys_moe.errors import UserError
from recsys_moe.schema import Schema, Task
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.resume import (
    Saved,
    belongs_to,
    check_resume,
    find_checkpoint,
    must_not_change,
)
from recsys_moe.train.trainer import make_trainer
from recsys_moe.train.warm_start import Start, open_start
from recsys_moe.train.warm_start_checks import check_alone, check_begun

logger = logging.getLogger("recsys_moe.fit")


class Opened(NamedTuple):
    """A run that may start or continue."""

    place: Path
    """Its folder: `out`, or `out`.part until that replaces `out`."""
    trainer: lightning.Trainer
    datamodule: RecDataModule
    start: Start | None
    """The model of a warm start."""
    saved: Saved | None
    """The checkpoint to continue from."""
    is_new: bool
    """Must the run folder be created?"""


def open_run(
    config: Config,
    data: Path,
    out: Path,
    *,
    overwrite: bool,
    resume: str | None,
    init_from: str | Path | None,
) -> Opened:
    """The arguments are those of `fit`. Raises ConfigError and DataError; writes nothing."""
    check_alone(init_from, resume)
    datamodule = RecDataModule(data, config)
    start = open_start(init_from, config, datamodule.schema, data)
    datamodule.open()
    place = place_of(out, overwrite, resume)
    monitor = find_monitor(config.trainer.monitor, datamodule.schema)
    trainer = make_trainer(config, place, monitor)
    saved = None if resume is None else _saved(config, data, place, resume)
    is_new = saved is None or not belongs_to(saved.path, place)
    if trainer.is_global_zero and is_new:
        inputs = {
            "--data": data,
            "--resume": saved and saved.path,
            "--init-from": start and start.folder,
        }
        check_begin(place, out, inputs, resume=resume, may_go_on=_may_go_on(place, config))
    _say_weights(config, datamodule.schema.tasks)
    _say_unread(config, datamodule.schema)
    return Opened(place, trainer, datamodule, start, saved, is_new)


def say_memory(module: nn.Module, config: Config) -> None:
    """Warn where training needs more memory than is free: weights, gradients, Adam's two moments
    and the average of `optim.ema_decay`, all in float32."""
    parameters = sum(one.numel() for one in module.parameters())
    needed = 4 * parameters * (4 + bool(config.optim.ema_decay))
    known = [one for one in (machine.memory()["available"], machine.memory_limit()) if one]
    if known and needed > min(known):
        logger.warning(
            "weights, gradients and moments need %s of memory, %s are free; lower "
            "model.embedding_dim, got %d, or leave rare ids out",
            *(machine.gib(needed), machine.gib(min(known)), config.model.embedding_dim),
        )


def _say_weights(config: Config, tasks: Sequence[Task]) -> None:
    """Log both weights where training and evaluation weigh tasks differently."""
    if (apart := weighed_apart(config, tasks)) is not None:
        logger.info("loss of training: %s (tasks.TASK.training_weight); of results: %s", *apart)


def _say_unread(config: Config, schema: Schema) -> None:
    """Log that the model does not read the context or the order that the data have."""
    if schema.events and config.model.sequence == "none":
        logger.info("the model does not read the order of events; model.sequence=lru does")
    if schema.context_features and config.model.context == "none":
        names = ", ".join(one.name for one in schema.context_features)
        logger.info("the model does not read the context (%s); model.context=all does", names)


def _saved(config: Config, data: Path, out: Path, resume: str) -> Saved | None:
    """The checkpoint to continue from. Raises ConfigError and DataError when it does not fit."""
    saved = find_checkpoint(out, resume)
    if saved is None:
        check_begun(out)
        return None
    check_resume(saved, config, data)
    most = config.trainer.max_epochs
    logger.info("continuing from %s after %d of %d epochs", saved.path, saved.finished, most)
    return saved


def _may_go_on(run: Path, config: Config) -> bool:
    """Would --resume auto accept these settings for the run at `run`?"""
    try:
        before = parse_config(read_config_file(str(run / "config.yaml")))
    except (UserError, OSError):
        return False
    return must_not_change(before, config) is None
