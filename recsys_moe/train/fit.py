"""fit: trains on a prepared folder and writes a run folder with a model."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning

from recsys_moe.artifact.run_folder import (
    CHECKPOINTS,
    LAST,
    begin_run,
    end_run,
    place_of,
    record_run,
    remove_run,
)
from recsys_moe.config.auto import say, with_choices
from recsys_moe.config.auto_rules import Choice
from recsys_moe.config.files import merge
from recsys_moe.config.renamed import with_new_names
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.data.rows import Batch
from recsys_moe.errors import Interrupted, RunError
from recsys_moe.schema import Schema
from recsys_moe.train import workarounds
from recsys_moe.train.budget import within
from recsys_moe.train.checkpoints import Checkpoints, Steps, streamed_by
from recsys_moe.train.cuda_graph import recorder_for
from recsys_moe.train.finalize import finish_run, how_to_finish
from recsys_moe.train.finite import NotFiniteError
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.loggers import check_logger, closing_logger
from recsys_moe.train.module import RecModule
from recsys_moe.train.opening import Opened, open_run, say_memory
from recsys_moe.train.processes.devices import lost_peers
from recsys_moe.train.processes.memory import flushed_denormals, kept_memory
from recsys_moe.train.resume import find_checkpoint
from recsys_moe.train.warm_start import start_config

logger = logging.getLogger("recsys_moe.fit")


@flushed_denormals()
def fit(
    config: Config | dict[str, Any] | None,
    data: str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    resume: str | None = None,
    init_from: str | Path | None = None,
    minutes: float | None = None,
    chosen: Sequence[Choice] = (),
) -> dict[str, Any]:
    """Train a model, keep the best epoch by `trainer.monitor`, and save its model and evaluation.

    `config`: a Config, or the sections of a configuration file; None or {}: what suits the data
    (`recsys-moe config explain`). `data`: a prepared folder. `out`: the run folder. `overwrite`:
    replace the run in `out` when the new one is complete. `resume`: `auto` (the newest readable
    checkpoint of `out`, or a new run where there is none) or the path of a checkpoint.
    `init_from`: a run or model folder whose weights a new run starts from (warm start); `config`
    then overrides the settings of that model. `minutes`: as many epochs, at most
    `trainer.max_epochs`, as are measured to end in that time; a resumed run keeps its plan.
    `chosen`: the settings of `config` that follow the data, of which it logs some as it begins.
    Returns the evaluation of the best epoch on the validation split; on several devices all
    processes but the first return {}. Raises ConfigError, DataError, RunError and Interrupted.
    """
    data, out = Path(data), Path(out)
    if not isinstance(config, Config):
        config, chosen = _resolved(config, data, init_from)
    asked: dict[str, Any] = {"overwrite": overwrite, "resume": resume, "init_from": init_from}
    saved = resume and minutes and find_checkpoint(place_of(out, overwrite, resume), resume)
    config, callback = within(minutes, config, chosen, data=data, saved=saved or None)
    place, trainer, datamodule, start, saved, is_new = open_run(config, data, out, **asked)
    trainer.callbacks[:0] = callback  # type: ignore[attr-defined]
    checkpoint = saved and saved.path
    del saved  # it is read again as training begins, and is then another file
    module = RecModule(config, datamodule.schema.to_json())
    if trainer.strategy.root_device.type == "cpu":
        say_memory(module, config)
    module.set_up(datamodule, start, bare=checkpoint is not None)
    module.recorder = recorder_for(module, trainer.strategy.root_device)
    if trainer.is_global_zero and is_new:
        origin: dict[str, Any] = {
            "checkpoint": checkpoint,
            "start": start and start.record,
        }
        begin_run(place, out, config, data, resume=resume, **origin)
    elif trainer.is_global_zero:
        record_run(place, config, data)
    if trainer.is_global_zero and place != out:
        logger.info("writing the new run to %s; %s stays until it is complete", place, out)
    if trainer.is_global_zero:
        say(chosen)
    with _removed_after_failure(place, trainer.is_global_zero and is_new):
        _run(trainer, module, datamodule, checkpoint)
    if not trainer.is_global_zero:
        return {}
    result = finish_run(module, datamodule, place)
    end_run(place, out, data)
    return result


def _resolved(
    raw: dict[str, Any] | None, data: Path, init_from: str | Path | None
) -> tuple[Config, Sequence[Choice]]:
    """`raw` over the model of a warm start; without both, what suits the data, and which of it."""
    chosen: Sequence[Choice] = ()
    if init_from is None:
        raw = with_new_names(raw or {})
        raw, chosen = with_choices(raw, Schema.load(data), everything=not raw)
    return start_config(raw or {}, init_from), chosen


@contextmanager
def _removed_after_failure(place: Path, ours: bool) -> Iterator[None]:
    """Remove the folder of a run that failed before its first checkpoint and would fail again.

    `ours`: this process has made it. Interrupted runs, and those of a full disk, may continue.
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
        again = "; start again with --overwrite; --resume auto would fail again"
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
    workarounds.disable_signal_handlers(trainer)
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
        saved = f"the run is saved in {checkpoints.folder}"
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
    chosen: Sequence[Choice] = (),
) -> dict[str, Any]:
    """Check what `fit` checks before its first step, and compute one step; write nothing.

    Raises what `fit` would raise. Returns sizes, the loss of the first batch and its seconds.
    """
    check_logger(config.trainer.logger)
    asked: dict[str, Any] = {"overwrite": overwrite, "resume": resume, "init_from": init_from}
    opened = open_run(_with(config, logger="csv"), Path(data), Path(out), **asked)
    datamodule, saved = opened.datamodule, opened.saved
    alone = _with(config, devices=1, num_nodes=1)
    module = RecModule(alone, datamodule.schema.to_json())
    module.set_up(datamodule, opened.start, bare=saved is not None)
    recorder_for(module, opened.trainer.strategy.root_device)
    if saved is not None:
        module.load_state_dict(saved.state["state_dict"])
        _check_steps(opened, config)
    batches = datamodule.train_batches(0 if saved is None else saved.finished)
    loss, seconds = _first_step(module, next(iter(batches)))
    say(chosen)
    return {
        "parameters": sum(p.numel() for p in module.parameters()),
        "rows": len(datamodule.rows("train")),
        "steps_per_epoch": len(batches),
        "loss_of_first_batch": loss,
        "seconds_of_first_step": round(seconds, 3),
    }


def _first_step(module: RecModule, batch: Batch) -> tuple[float, float]:
    """Its loss without penalties, and its seconds."""
    begun = time.perf_counter()
    loss, penalties = module.batch_losses(batch)
    (loss + penalties).backward()
    return loss.item(), time.perf_counter() - begun


def _with(config: Config, **trainer: Any) -> Config:
    return parse_config(merge(config.model_dump(mode="json"), {"trainer": trainer}))


def _check_steps(opened: Opened, config: Config) -> None:
    """As a continued run checks its steps when training starts."""
    saved, checkpoints = opened.saved, opened.trainer.checkpoint_callback
    assert saved is not None and isinstance(checkpoints, Checkpoints)
    processes = config.trainer.processes
    batches = len(opened.datamodule.train_batches(saved.finished, world=processes))
    streamed = streamed_by(opened.datamodule.rows("train"), processes)
    checkpoints.read(saved.state)
    checkpoints.load_state_dict(saved.state["callbacks"][checkpoints.state_key])
    checkpoints.check_fits(Steps(saved.is_inside, batches, processes, streamed))
