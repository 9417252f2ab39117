"""fit: from a prepared folder and a configuration to a run folder with an artifact."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning

from recsys_moe.artifact.run_folder import (
    CHECKPOINTS,
    LAST,
    begin_run,
    end_run,
    record_run,
    remove_run,
)
from recsys_moe.config.files import merge
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.errors import Interrupted, RunError
from recsys_moe.train import workarounds
from recsys_moe.train.checkpoints import Checkpoints, Steps, streamed_by
from recsys_moe.train.finalize import finish_run, how_to_finish
from recsys_moe.train.finite import NotFiniteError
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.loggers import check_logger, closing_logger
from recsys_moe.train.module import RecModule
from recsys_moe.train.opening import Opened, open_run
from recsys_moe.train.processes.devices import lost_peers
from recsys_moe.train.processes.memory import flushed_denormals, kept_memory
from recsys_moe.train.warm_start import set_up, start_config

logger = logging.getLogger("recsys_moe.fit")


@flushed_denormals()
def fit(
    config: Config | dict[str, Any],
    data: str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    resume: str | None = None,
    init_from: str | Path | None = None,
) -> dict[str, Any]:
    """Train, keep the best checkpoint by `trainer.monitor`, save its artifact and evaluation.

    `config`: validated, or its sections as a configuration file holds them. `data`: a prepared
    folder. `resume`: None, `auto` (the newest good checkpoint of `out`, or the beginning where
    there is none yet) or a path. `init_from`: a run or model folder whose weights a new run starts
    from; the sections of `config` then go over the model's own.
    Returns the evaluation of the best model on the validation split; on several devices the first
    process does, the others return {}. Raises ConfigError, DataError, RunError and Interrupted.
    """
    config = config if isinstance(config, Config) else start_config(config, init_from)
    data, out = Path(data), Path(out)
    asked: dict[str, Any] = {"overwrite": overwrite, "resume": resume, "init_from": init_from}
    place, trainer, datamodule, start, saved, is_new = open_run(config, data, out, **asked)
    checkpoint = saved and saved.path
    del saved  # it is read again as training begins, and is then another file
    module = RecModule(config.model_dump(mode="json"), datamodule.schema.to_json())
    set_up(module, datamodule, start, bare=checkpoint is not None)
    if trainer.is_global_zero and is_new:
        origin: dict[str, Any] = {
            "checkpoint": checkpoint,
            "start": start and start.record,
        }
        begin_run(place, out, config, data, resume=resume, **origin)
    elif trainer.is_global_zero:
        record_run(place, config, data)
    if trainer.is_global_zero and place != out:
        logger.info("the run is made in %s; %s stays as it is until that is whole", place, out)
    with _removed_where_vain(place, trainer.is_global_zero and is_new):
        _run(trainer, module, datamodule, checkpoint)
    if not trainer.is_global_zero:
        return {}
    result = finish_run(module, datamodule, data, place)
    end_run(place, out, data)
    return result


@contextmanager
def _removed_where_vain(place: Path, ours: bool) -> Iterator[None]:
    """A run that failed before its first checkpoint, and could only fail again, leaves no folder.

    `ours`: this process has made it. Interrupted runs and those that met a full disk may go on.
    """
    try:
        yield
    except (Interrupted, RunError) as error:
        if not isinstance(error, NotFiniteError):
            raise
        has_steps = (place / CHECKPOINTS / LAST).exists()
        if ours and not has_steps:
            remove_run(place)
        finish = how_to_finish(place) if has_steps else ""
        again = "; start again with --overwrite, since --resume auto would meet it again"
        raise NotFiniteError(f"{error}{again if has_steps else ''}{finish}") from None
    except Exception:
        if ours and not (place / CHECKPOINTS / LAST).exists():
            remove_run(place)
        raise


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
        finish = how_to_finish(checkpoints.folder.parent)
        saved = f"all is saved in {checkpoints.folder}"
        message = f"interrupted; {saved}: continue with --resume auto{finish}"
        raise Interrupted(message, checkpoints.stop.number)


def dry_run(
    config: Config,
    data: str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    resume: str | None = None,
    init_from: str | Path | None = None,
) -> dict[str, Any]:
    """Check all that `fit` would check and make one step on one batch; write nothing.

    Raises what `fit` would raise before its first step.
    """
    check_logger(config.trainer.logger)
    asked: dict[str, Any] = {"overwrite": overwrite, "resume": resume, "init_from": init_from}
    opened = open_run(_with(config, logger="csv"), Path(data), Path(out), **asked)
    datamodule, saved = opened.datamodule, opened.saved
    alone = _with(config, devices=1, num_nodes=1)
    module = RecModule(alone.model_dump(mode="json"), datamodule.schema.to_json())
    set_up(module, datamodule, opened.start, bare=saved is not None)
    if saved is not None:
        module.load_state_dict(saved.state["state_dict"])
        _check_steps(opened, config)
    batches = datamodule.train_batches(0 if saved is None else saved.finished)
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


def _with(config: Config, **trainer: Any) -> Config:
    return parse_config(merge(config.model_dump(mode="json"), {"trainer": trainer}))


def _check_steps(opened: Opened, config: Config) -> None:
    """As a run that goes on checks its steps when it begins to train."""
    saved, checkpoints = opened.saved, opened.trainer.checkpoint_callback
    assert saved is not None and isinstance(checkpoints, Checkpoints)
    processes = config.trainer.processes
    batches = len(opened.datamodule.train_batches(saved.finished, world=processes))
    streamed = streamed_by(opened.datamodule.rows("train"), processes)
    checkpoints.read(saved.state)
    checkpoints.load_state_dict(saved.state["callbacks"][checkpoints.state_key])
    checkpoints.check_fits(Steps(saved.is_inside, batches, processes, streamed))
