"""How long a run still has: to its last epoch at the most, and until its patience ends."""

from __future__ import annotations

import time

from lightning import Trainer

from recsys_moe.train.workarounds import ResumableEarlyStopping

UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
WHOLE_FROM = 10
"""Of a unit: from so many on the smaller one beside it says nothing."""


class Pace:
    """Epochs done since this process began to train, and the time they took."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._begun = time.monotonic()
        inside = trainer.fit_loop.restarting  # resumed inside an epoch
        self._from = _epochs_done(trainer) if inside else float(trainer.current_epoch)

    def ahead(self, *, ended: bool = False) -> list[str]:
        """`no improvement for 7 of 15 epochs` and `at most 12 min left`, at the speed so far; each
        where there is anything to say. `ended`: the epoch has just been validated."""
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
    """With the part of the epoch that runs, in steps."""
    steps = trainer.fit_loop.epoch_loop.batch_progress.current.ready
    return trainer.current_epoch + steps / max(int(trainer.num_training_batches), 1)


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `12 min`, `5 h 3 min`, `2 d 4 h`: two digits or more of it."""
    whole = round(seconds)
    for size, unit, smaller, name in UNITS:
        if whole >= size:
            rest = whole % size // smaller
            many = whole // size >= WHOLE_FROM or not rest
            return f"{whole // size} {unit}" + ("" if many else f" {rest} {name}")
    return f"{max(whole, 1)} s"
