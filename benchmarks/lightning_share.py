"""Lightning's share of the training loop: `fit` against a bare loop around the same step.

    python benchmarks/lightning_share.py [--data DIR] [--rounds N] [--clock wall|cpu]

`recsys_moe.fit` trains the paper's model and stops after every block of steps for the bare loop to
 train as many: the same `training_step`, batches and optimizer, called by hand. What is
left of the difference is Lightning, its callbacks, logging and progress (a bar on a terminal,
lines elsewhere). Without --data the rows are made up.
"""

from __future__ import annotations

import itertools
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import common
import shape
from lightning.pytorch.callbacks import Callback
from watching import watched_by

from recsys_moe.config.settings import Config, parse_config
from recsys_moe.data.columns import Batch
from recsys_moe.train.fit import fit
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule


class EnoughError(Exception):
    """All rounds are measured."""


class BareLoop:
    """The module's own training step without a Trainer."""

    def __init__(self, config: Config, data: Path) -> None:
        datamodule = RecDataModule(data, config)
        self.module = RecModule(config.model_dump(mode="json"), datamodule.schema.to_json())
        self.module._steps_per_epoch = len(datamodule.train_dataloader())
        self.module.train()
        self.optimizer = self.module._optimizer()
        self.batches = self._batches(datamodule)

    @staticmethod
    def _batches(datamodule: RecDataModule) -> Iterator[Batch]:
        return itertools.chain.from_iterable(iter(datamodule.train_dataloader, None))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            # Any index but 0 is one at which the module logs nothing.
            loss = self.module.training_step(next(self.batches), 1)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


class Watcher(Callback):
    """Times blocks of steps of the Trainer and, after each, a block of the bare loop."""

    def __init__(self, bare: BareLoop, block: int, rounds: int, now: Callable[[], float]) -> None:
        self.bare, self.block, self.rounds, self.now = bare, block, rounds, now
        self.times: common.Times = {"fit": [], "bare loop": []}
        self.seen, self.start = 0, 0.0

    def on_train_batch_start(self, *unused: Any) -> None:
        if self.seen % self.block == 0:
            start = self.now()
            if self.seen:
                self._add("fit", start - self.start)
            self.bare.run(self.block)
            if self.seen:
                self._add("bare loop", self.now() - start)
            if len(self.times["bare loop"]) == self.rounds + 1:
                raise EnoughError
            self.start = self.now()
        self.seen += 1

    def _add(self, name: str, seconds: float) -> None:
        self.times[name].append(1e3 * seconds / self.block)


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=30)
    parser.add_argument("--data", type=Path, help="prepared folder of MovieLens-1M")
    parser.add_argument("--block", type=int, default=25, help="steps per block")
    parser.add_argument("--ratings", type=int, default=600_000, help="size of the made-up rows")
    parser.add_argument("--batch-size", type=int, default=shape.BATCH)
    options = common.parse(parser, argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="share-") as scratch:
        data = options.data or shape.make_data(
            Path(scratch) / "data", shape.USERS, shape.ITEMS, options.ratings
        )
        times = measure(options, data, Path(scratch) / "run")
    show(times, options.block)


def measure(options: Any, data: Path, out: Path) -> common.Times:
    trainer = {"max_epochs": 1000, "batch_size": options.batch_size}
    config = parse_config({"trainer": trainer})
    now = common.CLOCKS[options.clock]
    watcher = Watcher(BareLoop(config, data), options.block, options.rounds, now)
    try:
        with watched_by(watcher):
            fit(config, data, out)
    except EnoughError:
        pass
    return {name: values[1:] for name, values in watcher.times.items()}  # the first warms up


def show(times: common.Times, block: int) -> None:
    times["difference"] = [a - b for a, b in zip(times["fit"], times["bare loop"], strict=True)]
    rows = [
        [name, f"{common.spread(ms):.2f}", f"{common.ratio(times, name, 'fit'):.1%}"]
        for name, ms in times.items()
    ]
    common.table(["loop", "ms per step: median (p10 - p90)", "share of fit"], rows)
    share = common.ratio(times, "difference", "fit")
    progress = "bar" if sys.stderr.isatty() else "lines"
    numbers = {"ms": {name: common.spread(ms) for name, ms in times.items()}, "share": share,
               "steps_per_block": block, "progress": progress}  # fmt: skip
    targets = [common.target("Lightning's share of the loop", 100 * share.median, 5, "%")]
    common.report("lightning_share", numbers, targets)


if __name__ == "__main__":
    main()
