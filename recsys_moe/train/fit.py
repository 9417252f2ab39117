"""fit: from a prepared folder and a configuration to a run folder with an artifact."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy, Strategy

from recsys_moe.artifact.baselines import baselines, missed
from recsys_moe.artifact.evaluation import Evaluation, add_rows
from recsys_moe.artifact.model_folder import save_artifact
from recsys_moe.artifact.monitor import Monitor, find_monitor
from recsys_moe.artifact.run_folder import (
    BEST,
    CHECKPOINTS,
    begin_run,
    end_run,
    place_of,
    record_run,
)
from recsys_moe.config.build import build_model
from recsys_moe.config.files import merge
from recsys_moe.config.settings import Config
from recsys_moe.data.streaming import user_counts, watched_items
from recsys_moe.errors import ConfigError, Interrupted, RunError
from recsys_moe.files import write_json
from recsys_moe.machine import has_fast_bf16
from recsys_moe.model.network import MultiTaskMoE
from recsys_moe.model.sharded import unfilled
from recsys_moe.train import workarounds
from recsys_moe.train.averaging import WeightAverage, averaged
from recsys_moe.train.callbacks import EpochCsv, progress_callback
from recsys_moe.train.checkpoints import Checkpoints
from recsys_moe.train.encoders import finish, histories
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.loggers import check_logger, close_logger, open_logger
from recsys_moe.train.module import RecModule
from recsys_moe.train.processes.devices import lost_peers
from recsys_moe.train.processes.memory import flushed_denormals, kept_memory
from recsys_moe.train.processes.starter import check_starter
from recsys_moe.train.resume import belongs_to, check_resume, find_checkpoint, read_checkpoint
from recsys_moe.train.routing_log import RoutingLog
from recsys_moe.train.sharded_strategy import ShardedStrategy
from recsys_moe.train.start import begin, check_alone, check_begun, open_start, start_config

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
    datamodule = RecDataModule(data, config)
    start = open_start(start_from, config, datamodule.schema, data)
    module = RecModule(config.model_dump(mode="json"), datamodule.schema.to_json())
    datamodule.open()
    module.start_routers(user_counts(datamodule.rows("train"), datamodule.schema))
    module.start_encoders(data, datamodule.rows("train"))
    monitor = find_monitor(config.trainer.monitor, datamodule.schema)
    place = place_of(out, overwrite, resume)
    trainer = _trainer(config, place, monitor)  # before anything there is touched
    if config.trainer.precision == "bf16-mixed" and trainer.strategy.root_device.type == "cpu":
        _warn_of_emulation()
    checkpoint = None if resume is None else _checkpoint(config, data, place, resume)
    if checkpoint is None:  # which would have it all
        begin(module, datamodule.rows("train"), start)
    is_new = checkpoint is None or not belongs_to(checkpoint, place)
    if trainer.is_global_zero:
        if is_new:
            origin: dict[str, Any] = {"checkpoint": checkpoint, "start": start and start.record}
            begin_run(place, out, config, data, resume=resume, **origin)
        else:
            record_run(place, config, data)
        if place != out:
            logger.info("the run is made in %s; %s stays as it is until that is whole", place, out)
    try:
        _run(trainer, module, datamodule, checkpoint)
    except ConfigError:  # found out at the first step
        if is_new and trainer.is_global_zero:
            shutil.rmtree(place)
        raise
    except OSError as error:
        remedy = "make room or make it writable, then continue with --resume auto"
        raise RunError(f"{error.filename or place}: {error.strerror or error}; {remedy}") from None
    if not trainer.is_global_zero:
        return {}
    result = _finish(module, datamodule, data, place)
    end_run(place, out, data)
    return result


def _warn_of_emulation() -> None:
    if not has_fast_bf16():
        logger.warning(
            "trainer.precision=bf16-mixed on a processor that torch emulates bfloat16 on: "
            "steps may take 10 times as long; use 32-true"
        )


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
    """Lightning's loop. Raises Interrupted on SIGINT and SIGTERM."""
    checkpoints = trainer.checkpoint_callback
    assert isinstance(checkpoints, Checkpoints)
    workarounds.leave_signals_to_us(trainer)
    with checkpoints.stop.listening(), kept_memory(), lost_peers():
        trainer.fit(module, datamodule=datamodule, ckpt_path=checkpoint, weights_only=True)
    close_logger(trainer.logger)
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
    module.start_encoders(datamodule.folder, datamodule.rows("train"))
    if start is not None:
        begin(module, datamodule.rows("train"), start)
    batches = datamodule.train_dataloader()
    batch = next(iter(batches))
    begun = time.perf_counter()
    loss, penalties = module.losses(module.model(batch.user, batch.item), batch.labels)
    (loss + penalties).backward()
    seconds = time.perf_counter() - begun
    return {
        "parameters": sum(p.numel() for p in module.parameters()),
        "rows": len(datamodule.rows("train")),
        "steps_per_epoch": len(batches),
        "loss_of_first_batch": loss.item(),
        "seconds_of_first_step": round(seconds, 3),
    }


def _trainer(config: Config, out: Path, monitor: Monitor) -> lightning.Trainer:
    settings = config.trainer
    workarounds.quieten()
    bar = sys.stderr.isatty()
    check_starter(settings.devices, settings.num_nodes)
    try:
        return _build_trainer(config, out, monitor, bar)
    except MisconfigurationException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"trainer.accelerator={settings.accelerator}: {reason}") from None


def _build_trainer(config: Config, out: Path, monitor: Monitor, bar: bool) -> lightning.Trainer:
    settings = config.trainer
    checkpoints = Checkpoints(out / CHECKPOINTS, settings.checkpoint_every_n_steps, monitor)
    return lightning.Trainer(
        accelerator=settings.accelerator,
        devices=settings.devices,
        num_nodes=settings.num_nodes,
        # Buffers of routers follow from seed, data and step: they need not be sent every step.
        strategy=_strategy(config, checkpoints, broadcast_buffers=False),
        use_distributed_sampler=False,
        precision=settings.precision,
        max_epochs=settings.max_epochs,
        default_root_dir=out,  # where Lightning looks for checkpoints of a requeued SLURM job
        logger=open_logger(settings.logger, out),
        callbacks=[*_callbacks(config, out, monitor, bar), checkpoints],
        plugins=[checkpoints.files, *workarounds.environments()],
        reload_dataloaders_every_n_epochs=1,
        num_sanity_val_steps=0,
        log_every_n_steps=settings.log_every_n_steps,
        enable_progress_bar=bar,
        enable_model_summary=False,
    )


def _strategy(config: Config, checkpoints: Checkpoints, **ddp: Any) -> Strategy | str:
    if config.trainer.is_sharded:
        return ShardedStrategy(checkpoints.files, checkpoints.folder, **ddp)
    return DDPStrategy(**ddp) if config.trainer.processes > 1 else "auto"


def _callbacks(config: Config, out: Path, monitor: Monitor, bar: bool) -> Iterable[Callback]:
    settings = config.trainer
    yield workarounds.Patience(
        monitor.column,
        mode=monitor.direction,
        patience=settings.patience,
        min_delta=settings.min_delta,
        check_finite=True,
    )
    if config.optim.average and not config.trainer.is_sharded:
        yield WeightAverage(config.optim.average)
    yield EpochCsv(out / "metrics.csv")
    yield RoutingLog(out / "routing.safetensors")
    yield progress_callback(bar)


def _finish(module: RecModule, datamodule: RecDataModule, data: Path, out: Path) -> dict[str, Any]:
    """Restore the best checkpoint, calibrate and evaluate it on `val`, write both and model/."""
    try:
        state = read_checkpoint(out / CHECKPOINTS / BEST).state
    except ValueError as error:
        raise RunError(f"{error}; start again with --overwrite") from None
    schema, config = module.schema, module.config
    epoch, model = state["epoch"] + 1, _trained(module, averaged(state))
    history = histories(model)
    model, encoders = finish(model, config, schema)
    del state  # three times the model: the optimizer's moments
    batches = datamodule.val_batches()
    evaluation = Evaluation(schema, config)
    add_rows(evaluation, model, batches, config)
    calibrations = evaluation.calibrate()
    result = evaluation.result("val")
    result |= {"epoch": epoch, "monitor": config.trainer.monitor}
    result["baselines"] = baselines(datamodule.rows("train"), datamodule.rows("val"), schema)
    for line in missed(result):
        logger.warning(line)
    write_json(out / "evaluation" / "val.json", result)
    seen = watched_items(datamodule.rows("train"), schema)
    save_artifact(
        out / "model",
        model.state_dict(),
        config,
        data,
        seen=seen,
        card={"val": result},
        calibrations=calibrations,
        encoders=encoders,
        history=history,
    )
    return result


def _trained(module: RecModule, weights: dict[str, Any]) -> MultiTaskMoE:
    """The model on the CPU with the weights of a checkpoint; sharded tables stay in its file."""
    if not module.config.trainer.is_sharded:
        module.load_state_dict(weights)
        return module.model.cpu()
    model = build_model(module.config, module.schema, tables=unfilled)
    own = {name.removeprefix("model."): values for name, values in weights.items()}
    model.load_state_dict(own, assign=True)
    return model
