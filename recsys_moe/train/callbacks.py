"""Progress of training: metrics.csv, a progress bar or log lines."""

from __future__ import annotations

import csv
import io
import logging
import math
import time
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, RichProgressBar

from recsys_moe.files import write_text
from recsys_moe.kinds import KINDS
from recsys_moe.train.module import RecModule
from recsys_moe.train.workarounds import ResumableEarlyStopping

logger = logging.getLogger("recsys_moe.fit")
SECONDS_BETWEEN_LINES = 5.0
SECONDS_BETWEEN_NUMBERS = 0.5
UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
WHOLE_FROM = 10
"""Of a unit: from so many on the smaller unit is left out."""


class EpochCsv(Callback):
    """Writes metrics.csv with one complete row per epoch.

    Lightning's CSVLogger spreads an epoch over several rows and deletes the file when a run is
    resumed. Here each checkpoint holds the rows, and a resumed run starts from those.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = ""

    def state_dict(self) -> dict[str, Any]:
        return {"text": self.text}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self.text = checkpoint["callbacks"][self.state_key]["text"]
        if trainer.is_global_zero:
            write_text(self.path, self.text)

    def on_train_epoch_end(self, trainer: Trainer, *unused: Any) -> None:
        values = {k: float(v) for k, v in sorted(trainer.logged_metrics.items()) if "/" in k}
        row = {"epoch": trainer.current_epoch + 1, "step": trainer.global_step, **values}
        stream = io.StringIO(newline="")
        writer = csv.DictWriter(stream, list(row), lineterminator="\n")
        if not self.text:
            writer.writeheader()
        writer.writerow(row)
        self.text += stream.getvalue()
        if trainer.is_global_zero:
            write_text(self.path, self.text)


class Pace:
    """Epochs done since this process began to train, and the time they took."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._begun = time.monotonic()
        inside = trainer.fit_loop.restarting  # resumed inside an epoch
        self._from = _epochs_done(trainer) if inside else float(trainer.current_epoch)

    def ahead(self, *, ended: bool = False) -> list[str]:
        """`no improvement for 7 of 15 epochs` and `at most 12 min left`, at the speed so far, where
        they apply. `ended`: the epoch has just been validated."""
        stopping = self._trainer.early_stopping_callback
        assert isinstance(stopping, ResumableEarlyStopping)
        waited = stopping.waited(self._trainer) if ended else stopping.wait_count
        wait = f"no improvement for {waited} of {stopping.patience} epochs" if waited else ""
        left = "" if waited >= stopping.patience else self._left()
        return [part for part in (wait, left) if part]

    def _left(self) -> str:
        trainer = self._trainer
        now, last = _epochs_done(trainer), trainer.max_epochs
        if last is None or not self._from < now < last:
            return ""
        seconds = (time.monotonic() - self._begun) / (now - self._from) * (last - now)
        return f"at most {duration(seconds)} left"


def _epochs_done(trainer: Trainer) -> float:
    """With the finished part of the current epoch."""
    steps = trainer.fit_loop.epoch_loop.batch_progress.current.ready
    return trainer.current_epoch + steps / max(int(trainer.num_training_batches), 1)


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `12 min`, `5 h 3 min`, `2 d 4 h`: at least two digits."""
    whole = round(seconds)
    for size, unit, smaller, name in UNITS:
        if whole >= size:
            rest = whole % size // smaller
            many = whole // size >= WHOLE_FROM or not rest
            return f"{whole // size} {unit}" + ("" if many else f" {rest} {name}")
    return f"{max(whole, 1)} s"


class PlainProgress(Callback):
    """Logs a line every few seconds and one per epoch."""

    def on_train_start(self, trainer: Trainer, *unused: Any) -> None:
        # A run that is resumed inside an epoch does not start it.
        self.pace = Pace(trainer)
        self.on_train_epoch_start(trainer)
        self.done = trainer.fit_loop.epoch_loop.batch_progress.current.ready

    def on_train_epoch_start(self, trainer: Trainer, *unused: Any) -> None:
        self.start = self.last = time.monotonic()
        self.done = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.monotonic()
        is_first = batch_idx <= self.done
        if not is_first and now - self.last < self.pause():
            return
        assert isinstance(pl_module, RecModule)
        self.last = now
        loss = pl_module.mean_loss()
        step, steps = batch_idx + 1, int(trainer.num_training_batches)
        speed = (step - self.done) / max(now - self.start, 1e-9)
        parts = [
            f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs} step {step}/{steps}"
            + ("" if loss is None else f" loss {loss:.4f}"),
            f"{speed:.0f} steps/s",
            *([] if is_first else self.pace.ahead()),
        ]
        self.show(", ".join(parts), step, steps)

    def pause(self) -> float:
        """Seconds between two calls of `show`, the first step of an epoch apart."""
        return SECONDS_BETWEEN_LINES

    def show(self, line: str, step: int, steps: int) -> None:
        """Tell how far the epoch is."""
        logger.info("%s", line)

    def on_train_epoch_end(self, trainer: Trainer, *unused: Any) -> None:
        logger.info("%s", epoch_line(trainer, time.monotonic() - self.start, self.pace))


def epoch_line(trainer: Trainer, seconds: float, pace: Pace) -> str:
    """Metrics of a finished epoch, and how long the run may still take."""
    epoch = f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
    figures = f"{epoch} done in {seconds:.1f} s: {headline(trainer.logged_metrics)}"
    return "; ".join([figures, *pace.ahead(ended=True)])


def headline(metrics: dict[str, Any]) -> str:
    """Losses and the headline metrics of tasks."""
    wanted = {"loss", *(kind.headline for kind in KINDS.values())}
    shown = [(k, v) for k, v in sorted(metrics.items()) if k.split("/")[-1] in wanted]
    return ", ".join(f"{key} {float(value):.4f}" for key, value in shown)


class Bar(RichProgressBar):
    """Lightning's bar on stderr, counting epochs from 1, with a line above it per finished epoch.

    Lightning's own reads every metric after every step, which makes a GPU wait.
    """

    def __init__(self) -> None:
        super().__init__(refresh_rate=20, console_kwargs={"stderr": True})
        self.asked = -math.inf
        self.shown: dict[str, Any] = {}
        self.pace: Pace | None = None

    def _get_train_description(self, current_epoch: int) -> str:
        return f"epoch {current_epoch + 1}/{self.trainer.max_epochs}"

    def get_metrics(self, trainer: Trainer, pl_module: Any) -> dict[str, Any]:
        now = time.monotonic()
        if now - self.asked >= SECONDS_BETWEEN_NUMBERS:
            self.asked = now
            loss, others = pl_module.mean_loss(), super().get_metrics(trainer, pl_module)
            self.shown = {} if loss is None else {"loss": loss}
            self.shown |= {name: value for name, value in others.items() if name != "v_num"}
            if self.pace is not None and (ahead := self.pace.ahead()):
                self.shown |= {"run": ", ".join(ahead)}
        return self.shown

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self.start = time.monotonic()  # a run that is resumed inside an epoch does not start it
        self.pace = Pace(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_start(trainer, pl_module)
        self.start = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        if self.progress is not None and self.pace is not None:
            line = epoch_line(trainer, time.monotonic() - self.start, self.pace)
            self.progress.console.print(line, highlight=False, markup=False, soft_wrap=True)
