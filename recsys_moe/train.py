"""fit: from a prepared folder and a configuration to a run folder with an artifact."""

from __future__ import annotations

import logging
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException

from recsys_moe.artifact import save_artifact
from recsys_moe.callbacks import EpochCsv, progress_callback
from recsys_moe.config import Config, suggestion
from recsys_moe.data import RecDataModule
from recsys_moe.errors import ConfigError, Interrupted
from recsys_moe.evaluate import calibrate, evaluate_model
from recsys_moe.module import RecModule
from recsys_moe.process import training_process
from recsys_moe.resume import belongs_to, check_resume, find_checkpoint
from recsys_moe.run_folder import create_run_folder, record_run, write_json
from recsys_moe.schema import Schema
from recsys_moe.streaming import user_counts, watched_items

logger = logging.getLogger("recsys_moe.fit")


def fit(
    config: Config,
    data: Path,
    out: Path,
    *,
    overwrite: bool = False,
    resume: str | None = None,
) -> dict[str, Any]:
    """Train, keep the best checkpoint by validation loss, save its artifact and its evaluation.

    `resume`: None, `auto` (the last checkpoint of `out`) or the path of a checkpoint.
    Returns the evaluation of the best model on the validation split.
    """
    data, out = Path(data), Path(out)
    datamodule = RecDataModule(data, config)
    check_tasks(config, datamodule.schema)
    module = RecModule(config.model_dump(mode="json"), datamodule.schema.to_json())
    for split in ("train", "val"):
        datamodule.rows(split)
    module.start_routers(user_counts(datamodule.rows("train"), datamodule.schema))
    trainer = _trainer(config, out)  # before anything at `out` is touched
    checkpoint = None if resume is None else find_checkpoint(out, resume)
    if checkpoint is not None:
        check_resume(checkpoint, config, data, out)
    is_new = checkpoint is None or not belongs_to(checkpoint, out)
    if is_new:
        create_run_folder(out, overwrite)
    record_run(out, config, data)
    try:
        _run(trainer, module, datamodule, checkpoint, out)
    except ConfigError:  # found out at the first step
        if is_new:
            shutil.rmtree(out)
        raise
    return _finish(trainer, module, datamodule, data, out)


def _run(
    trainer: lightning.Trainer,
    module: RecModule,
    datamodule: RecDataModule,
    checkpoint: Path | None,
    out: Path,
) -> None:
    """Lightning's loop. Raises Interrupted on SIGINT and SIGTERM."""
    try:
        with _own_signals():
            trainer.fit(module, datamodule=datamodule, ckpt_path=checkpoint, weights_only=True)
    except SystemExit as stop:  # Lightning's answer to SIGTERM (exit code 0) and SIGINT (1)
        name = signal.SIGTERM if isinstance(stop, SIGTERMException) else signal.SIGINT
        raise Interrupted(_after_interrupt(out), name) from None


@contextmanager
def _own_signals() -> Iterator[None]:
    """Lightning's signal handlers and training_process(), put back afterwards."""
    in_main = threading.current_thread() is threading.main_thread()
    # Lightning would call a handler of ours before its own.
    handler = signal.signal(signal.SIGTERM, signal.SIG_DFL) if in_main else None
    try:
        with training_process():
            yield
    finally:
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


def dry_run(config: Config, data: Path) -> dict[str, Any]:
    """Open the data, build the model, run one step on one batch; write nothing."""
    datamodule = RecDataModule(Path(data), config)
    check_tasks(config, datamodule.schema)
    module = RecModule(config.model_dump(mode="json"), datamodule.schema.to_json())
    batches = datamodule.train_dataloader()
    batch = next(iter(batches))
    start = time.perf_counter()
    loss, penalties = module.losses(module.model(batch.user, batch.item), batch.labels)
    (loss + penalties).backward()
    seconds = time.perf_counter() - start
    return {
        "parameters": sum(p.numel() for p in module.parameters()),
        "rows": len(datamodule.rows("train")),
        "steps_per_epoch": len(batches),
        "loss_of_first_batch": loss.item(),
        "seconds_of_first_step": round(seconds, 3),
    }


def _after_interrupt(out: Path) -> str:
    """What is saved, in words. A run folder without any checkpoint is removed."""
    if any((out / "checkpoints").glob("*.ckpt")):
        return f"interrupted; finished epochs are saved in {out}: continue with --resume auto"
    shutil.rmtree(out)
    return "interrupted before the first epoch was finished; nothing is saved"


def check_tasks(config: Config, schema: Schema) -> None:
    """Raise ConfigError when the configuration weighs a task that the data do not have."""
    names = [task.name for task in schema.tasks]
    for name in config.tasks:
        if name not in names:
            raise ConfigError(f"tasks: unknown task {name!r}; {suggestion(name, names)}")


def _trainer(config: Config, out: Path) -> lightning.Trainer:
    settings = config.trainer
    _quieten_lightning()
    bar = sys.stderr.isatty()
    if settings.devices > 1:
        raise ConfigError(
            f"trainer.devices must be 1, got {settings.devices}: "
            "training on several devices is not supported yet"
        )
    try:
        return _build_trainer(config, out, bar)
    except MisconfigurationException as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"trainer.accelerator={settings.accelerator}: {reason}") from None


def _build_trainer(config: Config, out: Path, bar: bool) -> lightning.Trainer:
    settings = config.trainer
    return lightning.Trainer(
        accelerator=settings.accelerator,
        devices=settings.devices,
        precision=settings.precision,
        max_epochs=settings.max_epochs,
        logger=TensorBoardLogger(out, name="", version="events"),
        callbacks=list(_callbacks(config, out, bar)),
        reload_dataloaders_every_n_epochs=1,
        num_sanity_val_steps=0,
        log_every_n_steps=settings.log_every_n_steps,
        enable_progress_bar=bar,
        enable_model_summary=False,
    )


def _callbacks(config: Config, out: Path, bar: bool) -> Iterable[Callback]:
    settings = config.trainer
    yield ModelCheckpoint(
        out / "checkpoints",
        filename="best",
        monitor="val/loss",
        save_last=True,
        enable_version_counter=False,
    )
    yield EarlyStopping(
        "val/loss", patience=settings.patience, min_delta=settings.min_delta, check_finite=True
    )
    yield EpochCsv(out / "metrics.csv")
    yield progress_callback(bar)


def _finish(
    trainer: lightning.Trainer,
    module: RecModule,
    datamodule: RecDataModule,
    data: Path,
    out: Path,
) -> dict[str, Any]:
    """Restore the best checkpoint, calibrate and evaluate it on `val`, write both and model/."""
    best = trainer.checkpoint_callback
    assert isinstance(best, ModelCheckpoint)
    state = torch.load(best.best_model_path, map_location="cpu", weights_only=True)
    module.load_state_dict(state["state_dict"])
    model, schema, config = module.model.cpu(), module.schema, module.config
    calibrations = calibrate(model, datamodule.val_dataloader(), schema, config)
    result = evaluate_model(
        model, datamodule.val_dataloader(), schema, config, "val", calibrations=calibrations
    )
    result["epoch"] = state["epoch"] + 1
    write_json(out / "evaluation" / "val.json", result)
    seen = watched_items(datamodule.rows("train"), schema)
    card = {"val": result}
    save_artifact(out / "model", model.state_dict(), config, data, seen, card, calibrations)
    return result


def _quieten_lightning() -> None:
    """Keep Lightning's banners, tips and hints about workers out of our users' logs."""
    # Its SIGTERM handler logs, and a log line inside our own log line loses the signal.
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec.* is deprecated.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message="The number of training batches.*is smaller.*")
    warnings.filterwarnings("ignore", message=".*Checkpoint directory .* exists and is not empty.*")
