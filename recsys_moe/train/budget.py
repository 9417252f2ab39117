"""`fit --minutes`: how many epochs fit into a time, measured before training begins."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from typing import Any

import lightning
import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.callbacks import Callback

from recsys_moe.config.files import merge
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.train.callbacks import duration
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule

logger = logging.getLogger("recsys_moe.fit")

WARM_UP, LONGEST = 3, 0.05
"""Steps that are not timed; share of the budget that measuring may take."""
MOST_STEPS = 50
FOR_THE_END = 0.1
"""Share of the budget for the model folder and the sampled ranking."""
SLOWER = 1.1
"""How many times as long an epoch takes as its parts: checkpoints, metrics, logs."""


def planned(config: Config, datamodule: RecDataModule, seconds: float) -> Config:
    """`config` with as many epochs, at most its own, as end within `seconds` by measurement."""
    begun = time.monotonic()
    epoch = SLOWER * _epoch_seconds(config, datamodule, seconds)
    left = seconds * (1 - FOR_THE_END) - (time.monotonic() - begun)
    most = config.trainer.max_epochs
    epochs = min(max(int(left / epoch), 1), most)
    if epoch > left:
        logger.warning(
            "an epoch takes about %s, and %s are left: training takes longer than --minutes",
            duration(epoch),
            duration(max(left, 1)),
        )
    logger.info("plan: %d of %d epochs, about %s each", epochs, most, duration(epoch))
    return with_epochs(config, epochs)


def with_epochs(config: Config, epochs: int) -> Config:
    changed = {"trainer": {"max_epochs": epochs}}
    return parse_config(merge(config.model_dump(mode="json"), changed))


def _epoch_seconds(config: Config, datamodule: RecDataModule, budget: float) -> float:
    """Of the training and validation batches of an epoch, by some of each of another module."""
    module = RecModule(config, datamodule.schema.to_json())
    module.set_up(datamodule)
    wanted = config.trainer.accelerator
    on_gpu = wanted != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    module.to(device).train()
    optimizer, most = module.make_optimizer(), budget * LONGEST
    module._steps_per_epoch = len(datamodule.train_batches(0))

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        module.training_step(move_data_to_device(batch, device), 1).backward()
        optimizer.step()

    def validate(batch: Any) -> None:
        with torch.no_grad():
            module.validation_step(move_data_to_device(batch, device), 1)

    training = _seconds(datamodule.train_batches(0), step, most, device)
    module.eval()
    module.on_validation_epoch_start()
    return training + _seconds(datamodule.val_batches(), validate, most / 2, device)


def _seconds(batches: Any, work: Callable[[Any], None], most: float, device: torch.device) -> float:
    """Of `work` on all batches, from as many of them as take `most` seconds, and the first load."""
    begun, took = time.monotonic(), []
    iterator = iter(batches)
    first = list(itertools.islice(iterator, 1))
    loading = time.monotonic() - begun
    for batch in itertools.islice(itertools.chain(first, iterator), WARM_UP + MOST_STEPS):
        started = time.monotonic()
        work(batch)
        if device.type == "cuda":
            torch.cuda.synchronize()
        took.append(time.monotonic() - started)
        if len(took) > WARM_UP and time.monotonic() - begun > most:
            break
    timed = took[WARM_UP:] or took or [0.0]
    return loading + len(batches) * sum(timed) / len(timed)


class Deadline(Callback):
    """Ends training before an epoch that would end after `seconds` from now."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def on_train_epoch_start(self, *unused: Any) -> None:
        self.begun = time.monotonic()

    def on_train_epoch_end(self, trainer: lightning.Trainer, *unused: Any) -> None:
        now, most = time.monotonic(), trainer.max_epochs or 0
        done = trainer.current_epoch + 1
        if done < most and now + (now - self.begun) > self.end:
            trainer.should_stop = True
            logger.warning(
                "ending after %d of %d planned epochs: they take longer than measured", done, most
            )
