"""When a run is saved, and how: whole files only, and never the newest as the only good one."""

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
from recsys_moe.data.columns import Columns, Rows
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
"""Several processes agree on stopping every so many steps; each time they wait for each other."""
GENERATORS = "generators"
STREAMED_BY = "streamed_by"


class Steps(NamedTuple):
    """How a run makes its steps."""

    inside: bool
    """It goes on inside an epoch."""
    batches: int
    """Steps of an epoch."""
    processes: int
    streamed_by: int | None


class WholeFiles(TorchCheckpointIO):
    """Replaces a checkpoint only by a complete one, and keeps what was `last` as `previous`.

    A failed write is kept in `failures` by file name, not raised: one process writes, and the
    others of the run wait for it to come back.
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
            # torch's writer may meet the error of the disk with one of its own.
            failure = error if isinstance(error, OSError) else error.__context__
            if not isinstance(failure, OSError):
                raise
            self.failures[path.name] = failure


class Checkpoints(Checkpoint):
    """`best` by `monitor` and `last` at each epoch's end; `last` every N steps, on a signal.

    A signal ends the run with Interrupted once its step, or its batch of validation, is saved; a
    value of model or optimizer that is not finite ends it with RunError, and is not saved.
    What a run needs to go on besides the state of model, optimizer, loops and callbacks: torch's
    own generators, for parts from outside. The project's streams depend on (seed, step) alone.
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
            # The second is its name from before other metrics could be monitored.
            self.best = state_dict["best" if "best" in state_dict else "best_loss"]
        self._batches = state_dict["batches"]

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.read(checkpoint)

    def read(self, checkpoint: dict[str, Any]) -> None:
        """Take what `check_fits` and the beginning of training need. Raises ConfigError."""
        lazy = checkpoint["optimizer_states"][0].get("lazy", {})  # of runs of before
        if lazy.get("step") != lazy.get("base"):
            raise ConfigError(
                "--resume: the run stopped inside an epoch with lazy embeddings, which are gone; "
                "go on from best.ckpt, the end of an epoch"
            )
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
            self.check_fits(_steps(trainer, batches))
            _restore_generators(self._loaded.pop(GENERATORS))
        self._batches = batches

    def check_fits(self, now: Steps) -> None:
        """Raise ConfigError when a run that stopped inside an epoch cannot go on like this."""
        remedy = "; go on as before to the end of the epoch, or from best.ckpt, the end of one"
        if now.inside and now.batches != self._batches:
            raise ConfigError(
                f"--resume: the run stopped inside an epoch of {self._batches} steps, which has "
                f"{now.batches} with trainer.devices={now.processes}{remedy}"
            )
        before = self._loaded[STREAMED_BY]
        if now.inside and before and before != now.streamed_by:
            raise ConfigError(
                f"--resume: the run stopped inside an epoch that {before} processes read from "
                f"disk, each its own rows; with {now.processes} some would come twice{remedy}"
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
        """The signal that came to any process, SIGTERM where only another one knows; or 0."""
        asked = trainer.strategy.reduce_boolean_decision(bool(self.stop.number), all=False)
        return (self.stop.number or signal.SIGTERM) if asked else 0

    def _end(self, trainer: Trainer, number: int) -> None:
        saved = self._save(trainer, LAST)
        where = f"epoch {trainer.current_epoch + 1}, step {trainer.global_step}"
        what = f"is saved in {self.folder}" if saved else f"is NOT saved, see above; {self.folder}"
        finish = how_to_finish(self.folder.parent)
        message = f"interrupted; {where} {what}: continue with --resume auto{finish}"
        raise Interrupted(message, number)

    def _save(self, trainer: Trainer, name: str) -> bool:
        """True when it is on the disk. Raises RunError when the result of the run would miss it."""
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
            logger.warning("%s; training goes on with the last good one; %s", reason, remedy)
        return False


def _refuse_not_finite(checkpoint: dict[str, Any]) -> None:
    """Raise RunError, in all processes of the run, for a value of model or optimizer."""
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


def _steps(trainer: Trainer, batches: int) -> Steps:
    inside, processes = trainer.fit_loop.restarting, trainer.world_size
    return Steps(inside, batches, processes, _streamed_by(trainer))


def _streamed_by(trainer: Trainer) -> int | None:
    return streamed_by(trainer.datamodule.rows("train"), trainer.world_size)  # type: ignore[attr-defined]


def streamed_by(rows: Rows, processes: int) -> int | None:
    """Processes that share out the training rows as they read them; None for rows in memory."""
    return None if isinstance(rows, Columns) else processes


def _restore_generators(saved: dict[str, Any]) -> None:
    torch.set_rng_state(saved["torch"])
    if torch.cuda.is_available() and len(saved["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(saved["cuda"])
