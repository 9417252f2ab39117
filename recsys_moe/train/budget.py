"""`fit --minutes`: how many epochs fit into a time.

Measured before training begins, when it is decided whether steps are few, and again by the first
epoch: the rate falls from the second on, so the run is that of as many epochs from the start.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.callbacks import Callback

from recsys_moe.config.auto_rules import Choice
from recsys_moe.config.diff import CONFIG_FILE, flat
from recsys_moe.config.files import merge_all, nested
from recsys_moe.config.settings import Config, parse_config
from recsys_moe.files import write_text
from recsys_moe.train.callbacks import duration
from recsys_moe.train.checkpoints import Checkpoints
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
from recsys_moe.train.processes.launch import check_minutes
from recsys_moe.train.processes.memory import kept_memory
from recsys_moe.train.resume import Saved
from recsys_moe.train.workarounds import first_batch

logger = logging.getLogger("recsys_moe.fit")

WARM_UP, LONGEST = 3, 0.05
"""Steps that are not timed; share of the budget that measuring may take."""
MOST_STEPS = 50
FOR_THE_END, AT_THE_END = 0.1, 5.0
"""For the model folder and the sampled ranking: a share of the budget, and at least seconds, but
not more than half."""
SLOWER = 1.1
"""How many times as long an epoch takes as its parts: checkpoints, metrics, logs."""
LATER = 1.03
"""How many times as long later epochs take as the first."""
SHORTEST = 1e-3
"""Seconds of an epoch: a coarse clock may stand still in one of a few rows."""
LEAST_SHARE = 0.2
"""Of the batches of an epoch, below which a resumed run does not tell how long one takes."""
FEW_STEPS = 1000
"""Of a plan, below which smaller batches end ahead (research/defaults.md)."""
GIVES_MORE = ("trainer.batch_size", "optim.lr")


def within(
    minutes: float | None,
    config: Config,
    chosen: Sequence[Choice],
    *,
    data: Path,
    saved: Saved | None,
) -> tuple[Config, list[Deadline]]:
    """`config` with its plan, or with that of `saved`, and what ends training in time.

    Raises ConfigError where no plan can be made.
    """
    check_minutes(minutes, config.trainer.processes)
    if minutes is None:
        return config, []
    left, most = for_training(60 * minutes), config.trainer.max_epochs
    if saved is not None:
        again = 0 if saved.finished else most
        return as_before(config, saved, chosen), [Deadline(left, again)]
    deadline, datamodule = Deadline(left, most), RecDataModule(data, config)
    datamodule.open()
    return planned(config, datamodule, 60 * minutes, chosen), [deadline]


def for_training(seconds: float) -> float:
    """Of a budget."""
    return seconds - min(max(FOR_THE_END * seconds, AT_THE_END), seconds / 2)


def planned(
    config: Config, datamodule: RecDataModule, seconds: float, chosen: Sequence[Choice] = ()
) -> Config:
    """`config` with as many epochs, at most its own, as end within `seconds` by measurement.

    A plan of few steps has smaller batches and a higher rate, where both are among the `chosen`
    settings, which follow the data.
    """
    begun = time.monotonic()
    with kept_memory():
        epoch = SLOWER * _epoch_seconds(config, datamodule, seconds)
    left = for_training(seconds) - (time.monotonic() - begun)
    most = config.trainer.max_epochs
    epochs = min(max(int(left / epoch), 1), most)
    if epoch > left:
        logger.warning(
            "an epoch takes about %s, and %s are left: training takes longer than --minutes",
            duration(epoch),
            duration(max(left, 1)),
        )
    logger.info("plan: %d of %d epochs, about %s each", epochs, most, duration(epoch))
    steps = epochs * datamodule.schema.rows["train"] / config.trainer.batch_size
    if epochs < most and steps < FEW_STEPS and {one.key for one in chosen} >= {*GIVES_MORE}:
        config = _with_more_steps(config)
    return with_epochs(config, epochs)


def _with_more_steps(config: Config) -> Config:
    """Half the batch and 1.5 times the rate (research/defaults.md)."""
    batch, rate = max(config.trainer.batch_size // 2, 1), round(1.5 * config.optim.lr, 5)
    logger.info("for more steps: trainer.batch_size=%d, optim.lr=%g", batch, rate)
    return _with(config, {"trainer.batch_size": batch, "optim.lr": rate})


def with_epochs(config: Config, epochs: int) -> Config:
    return _with(config, {"trainer.max_epochs": epochs})


def as_before(config: Config, saved: Saved, chosen: Sequence[Choice]) -> Config:
    """`config` with the plan of the run that is resumed."""
    before = dict(flat(saved.state["hyper_parameters"]["config"]))
    keys = {"trainer.max_epochs", *({one.key for one in chosen} & {*GIVES_MORE})}
    return _with(config, {key: before[key] for key in keys})


def _with(config: Config, values: dict[str, Any]) -> Config:
    changed = (nested(key, value) for key, value in values.items())
    return parse_config(merge_all([config.model_dump(mode="json"), *changed]))


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

    reduced = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}.get(
        config.trainer.precision
    )

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, reduced, enabled=reduced is not None):
            loss = module.training_step(move_data_to_device(batch, device), 1)
        loss.backward()
        optimizer.step()

    def validate(batch: Any) -> None:
        with torch.no_grad(), torch.autocast(device.type, reduced, enabled=reduced is not None):
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
    """Ends training within `seconds` from now.

    `most`: epochs of the plan that the first one makes; 0: the plan stays, as of a run that is
    resumed after it. Ends before an epoch that would be late, too, where epochs become slower.
    """

    def __init__(self, seconds: float, most: int = 0) -> None:
        self.end, self.most = time.monotonic() + seconds, most

    def on_train_start(self, trainer: Trainer, *unused: Any) -> None:
        """For the rest of an epoch, which does not begin again."""
        self._begin(1 - first_batch(trainer) / max(trainer.num_training_batches, 1))

    def on_train_epoch_start(self, *unused: Any) -> None:
        self._begin(1.0)

    def _begin(self, share: float) -> None:
        self.begun, self.share = time.monotonic(), share
        self.trained: float | None = None
        """When the last batch had been trained."""

    def on_validation_start(self, *unused: Any) -> None:
        self.trained = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, module: LightningModule) -> None:
        if self.share < LEAST_SHARE:
            return
        now, done = time.monotonic(), trainer.current_epoch + 1
        trained = now if self.trained is None else self.trained
        took = (trained - self.begun) / self.share + now - trained
        epoch = LATER * max(took, SHORTEST)
        left = max(int((self.end - now) / epoch), 0)
        if done == 1 and self.most:
            assert isinstance(module, RecModule)
            self._plan(trainer, module, min(done + left, self.most))
        elif not left and done < (most := trainer.max_epochs or 0):
            trainer.should_stop = True
            logger.warning(
                "ending after %d of %d planned epochs: they take longer than measured; the others "
                "follow with --resume auto",
                done,
                most,
            )

    def _plan(self, trainer: Trainer, module: RecModule, epochs: int) -> None:
        """Before the first epoch is saved."""
        if epochs == trainer.max_epochs:
            return
        logger.info("plan: %d epoch%s, by the time of the first", epochs, "s"[epochs == 1 :])
        trainer.fit_loop.max_epochs = epochs
        module.plan(with_epochs(module.config, epochs))
        checkpoints = trainer.checkpoint_callback
        assert isinstance(checkpoints, Checkpoints)
        write_text(checkpoints.folder.parent / CONFIG_FILE, module.config.to_yaml())
