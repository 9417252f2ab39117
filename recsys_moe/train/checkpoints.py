"""Saves a run: complete files only, and `last` is replaced only when `previous` is kept."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.io import TorchCheckpointIO
from torch import Tensor

from recsys_moe.artifact.monitor import Monitor
from recsys_moe.artifact.run_folder import BEST, LAST, PREVIOUS, locked_hashes
from recsys_moe.data.columns import Rows
from recsys_moe.data.rows import Columns
from recsys_moe.errors import ConfigError, Interrupted, RunError
from recsys_moe.files import replacing
from recsys_moe.folders import PART
from recsys_moe.train.finalize import how_to_finish
from recsys_moe.train.finite import not_finite, refuse
from recsys_moe.train.processes.devices import on_first
from recsys_moe.train.processes.signals import StopSignals
from recsys_moe.train.resume import CHECKPOINT_FORMAT, DATA_FILES, FORMAT
from recsys_moe.train.workarounds import validate_again

logger = logging.getLogger("recsys_moe.fit")

STEPS_BETWEEN_WISHES = 16
"""Several processes check for a signal every so many steps; each check makes them wait."""
GENERATORS = "generators"
STREAMED_BY = "streamed_by"


class Steps(NamedTuple):
    """How a run makes its steps."""

    inside: bool
    """The run continues inside an epoch."""
    batches: int
    """Steps of an epoch."""
    processes: int
    streamed_by: int | None


class WholeFiles(TorchCheckpointIO):
    """Replaces a checkpoint only by a complete one, and keeps the former `last` as `previous`.

    `failures` holds failed writes by file name: one process writes while the others wait for it,
    so it must not raise.
    """

    def __init__(self) -> None:
        self.failures: dict[str, OSError] = {}

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        path = Path(path)
        keep = path.with_name(PREVIOUS) if path.name == LAST else None
        self.failures.pop(path.name, None)
        try:
            with replacing(path, keep=keep) as stream:
                torch.save(checkpoint, stream)
        except (OSError, RuntimeError) as error:
            # torch's writer may raise an error of its own while it handles that of the disk.
            failure = error if isinstance(error, OSError) else error.__context__
            if not isinstance(failure, OSError):
                raise
            self.failures[path.name] = failure


class Checkpoints(Checkpoint):
    """Saves `best` by `monitor` and `last` at the end of an epoch; `last` every N steps too.

    A signal ends the run with Interrupted after the step, or batch of validation, is saved. NaN or
    infinite values of model or optimizer end it with RunError and are not saved. Checkpoints hold
    torch's generators for custom parts; the project's streams depend on (seed, step) alone.
    """

    def __init__(self, folder: Path, every_n_steps: int, monitor: Monitor) -> None:
        self.folder = folder
        self.monitor = monitor
        self.every_n_steps = every_n_steps
        self.files = WholeFiles()
        self.stop = StopSignals()
        self.best = monitor.worst
        self._batches = 0
        self._loaded: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "batches": self._batches}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if (self.folder / BEST).is_file():
            self.best = state_dict["best"]
        self._batches = state_dict["batches"]

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.read(checkpoint)

    def read(self, checkpoint: dict[str, Any]) -> None:
        """Keep what `check_fits` and the start of training need."""
        self._loaded = {name: checkpoint[name] for name in (GENERATORS, STREAMED_BY)}

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        _refuse_not_finite(checkpoint)
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        checkpoint[GENERATORS] = {"torch": torch.get_rng_state(), "cuda": cuda}
        checkpoint[STREAMED_BY] = _streamed_by(trainer)
        checkpoint[FORMAT] = CHECKPOINT_FORMAT
        checkpoint[DATA_FILES] = locked_hashes(self.folder.parent)
        if trainer.validating:
            validate_again(checkpoint)

    def on_train_start(self, trainer: Trainer, *unused: Any) -> None:
        for part in self.folder.glob(f"*{PART}") if trainer.is_global_zero else ():
            part.unlink()
        batches = int(trainer.num_training_batches)
        if self._loaded:
            inside, processes = trainer.fit_loop.restarting, trainer.world_size
            self.check_fits(Steps(inside, batches, processes, _streamed_by(trainer)))
            saved = self._loaded.pop(GENERATORS)
            torch.set_rng_state(saved["torch"])
            if torch.cuda.is_available() and len(saved["cuda"]) == torch.cuda.device_count():
                torch.cuda.set_rng_state_all(saved["cuda"])
        self._batches = batches

    def check_fits(self, now: Steps) -> None:
        """Raise ConfigError when a run that stopped inside an epoch cannot continue like this."""
        remedy = "; continue with the former devices, or from best.ckpt, the end of an epoch"
        if now.inside and now.batches != self._batches:
            raise ConfigError(
                f"--resume: the run stopped inside an epoch of {self._batches} steps, got "
                f"{now.batches} with trainer.devices={now.processes}{remedy}"
            )
        before = self._loaded[STREAMED_BY]
        if now.inside and before and before != now.streamed_by:
            raise ConfigError(
                f"--resume: the run stopped inside an epoch that {before} processes read from "
                f"disk, and would repeat rows with {now.processes}{remedy}"
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if batch_idx + 1 == trainer.num_training_batches:
            return  # validation is next
        step = trainer.global_step
        several = trainer.world_size > 1
        number = 0 if several and step % STEPS_BETWEEN_WISHES else self._wish(trainer)
        if number:
            self._end(trainer, number)
        elif step % self.every_n_steps == 0:
            self._save(trainer, LAST)

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        # Processes may have different numbers of batches here: several of them stop afterwards.
        if trainer.world_size == 1 and self.stop.number:
            self._end(trainer, self.stop.number)

    def on_train_epoch_end(self, trainer: Trainer, *unused: Any) -> None:
        value = float(trainer.callback_metrics[self.monitor.column])
        is_better = self.monitor.is_better(value, self.best)
        if trainer.strategy.reduce_boolean_decision(is_better):
            self.best = value
            self._save(trainer, BEST)
        number = self._wish(trainer)
        if number:
            self._end(trainer, number)
        self._save(trainer, LAST)

    def _wish(self, trainer: Trainer) -> int:
        """The signal that any process got (SIGTERM where another process got it), or 0."""
        asked = trainer.strategy.reduce_boolean_decision(bool(self.stop.number), all=False)
        return (self.stop.number or signal.SIGTERM) if asked else 0

    def _end(self, trainer: Trainer, number: int) -> None:
        saved = self._save(trainer, LAST)
        where = f"epoch {trainer.current_epoch + 1}, step {trainer.global_step}"
        what = "is saved in" if saved else "is NOT saved, see above;"
        finish = how_to_finish(self.folder.parent)
        message = f"interrupted; {where} {what} {self.folder}: continue with --resume auto{finish}"
        raise Interrupted(message, number)

    def _save(self, trainer: Trainer, name: str) -> bool:
        """Was it written? Raises RunError where the result of the run needs it."""
        trainer.save_checkpoint(self.folder / name)
        failure = self.files.failures.get(name)
        why = on_first(failure and str(failure.strerror), lambda said: next(filter(None, said), ""))
        if not why:
            return True
        reason = f"{self.folder / name} cannot be written: {why}"
        remedy = "make room or make the folder writable"
        if name == BEST:
            raise RunError(f"{reason}; {remedy}, then continue with --resume auto")
        if trainer.is_global_zero:
            logger.warning("%s; training continues with the last good one; %s", reason, remedy)
        return False


def _refuse_not_finite(checkpoint: dict[str, Any]) -> None:
    """Raise RunError in all processes of the run."""
    state = _named(checkpoint["optimizer_states"], "the state of the optimizer")
    own = not_finite(checkpoint["state_dict"].items()) or not_finite(state)
    refuse(on_first(own, lambda names: next(filter(None, names), "")), checkpoint["global_step"])


def _named(state: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """All tensors in nested dictionaries and lists, under one name."""
    if isinstance(state, Tensor):
        yield name, state
    elif isinstance(state, dict | list):
        for part in state.values() if isinstance(state, dict) else state:
            yield from _named(part, name)


def _streamed_by(trainer: Trainer) -> int | None:
    return streamed_by(trainer.datamodule.rows("train"), trainer.world_size)  # type: ignore[attr-defined]


def streamed_by(rows: Rows, processes: int) -> int | None:
    """Processes that read training rows from disk, each its share; None for rows in memory."""
    return None if isinstance(rows, Columns) else processes
