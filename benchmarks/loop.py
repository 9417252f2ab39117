"""What the loop of `fit` costs beside its steps: Lightning's share, and the making of batches.

    python benchmarks/loop.py [--data DIR] [--rounds N] [--clock wall|cpu]

`fit` trains the paper's model and stops after every block of steps for a bare loop to train as
many: the same `training_step`, batches and optimizer, called by hand. What is left of the
difference is Lightning, its callbacks, logging and progress (a bar on a terminal, lines elsewhere).
Without --data the rows are made up.
"""

from __future__ import annotations

import itertools
import logging
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import common
import shape
from lightning.pytorch.callbacks import Callback
from watching import watched_by

from recsys_moe.config.settings import Config, parse_config
from recsys_moe.train.fit import fit
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule

LOOPS = ("fit", "bare loop", "its batches")


class EnoughError(Exception):
    """All rounds are measured."""


class Watcher(Callback):
    """Times blocks of steps of the Trainer and, after each, a block of the bare loop."""

    def __init__(self, config: Config, data: Path, options: Any) -> None:
        self.options = options
        self.now: Callable[[], float] = common.CLOCKS[options.clock]
        self.times: common.Times = {name: [] for name in LOOPS}
        self.seen, self.start = 0, 0.0
        datamodule = RecDataModule(data, config)
        self.module = RecModule(config.model_dump(mode="json"), datamodule.schema.to_json())
        self.module._steps_per_epoch = len(datamodule.train_dataloader())
        self.optimizer: Any = self.module.train().make_optimizer()
        epochs = iter(datamodule.train_dataloader, None)
        self.batches = itertools.chain.from_iterable(epochs)

    def on_train_batch_start(self, *unused: Any) -> None:
        if self.seen % self.options.block == 0:
            start = self.now()
            fetching = self.train_bare()
            if self.seen:
                spent = {"fit": start - self.start, "bare loop": self.now() - start,
                         "its batches": fetching}  # fmt: skip
                for name, seconds in spent.items():
                    self.times[name].append(1e3 * seconds / self.options.block)
            if len(self.times["fit"]) == self.options.rounds + 1:
                raise EnoughError
            self.start = self.now()
        self.seen += 1

    def train_bare(self) -> float:
        """A block of the bare loop; seconds that the making of its batches took."""
        fetching = 0.0
        for _ in range(self.options.block):
            start = self.now()
            batch = next(self.batches)
            fetching += self.now() - start
            # Any index but 0 is one at which the module logs nothing.
            loss = self.module.training_step(batch, 1)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return fetching


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=30)
    parser.add_argument("--data", type=Path, help="prepared folder of MovieLens-1M")
    parser.add_argument("--block", type=int, default=25, help="steps per block")
    parser.add_argument("--ratings", type=int, default=600_000, help="size of the made-up rows")
    parser.add_argument("--batch-size", type=int, default=shape.BATCH)
    options = common.parse(parser, argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    config = parse_config({"trainer": {"max_epochs": 1000, "batch_size": options.batch_size}})
    with tempfile.TemporaryDirectory(prefix="loop-") as scratch:
        data = options.data or shape.make_data(Path(scratch) / "data", options.ratings)
        watcher = Watcher(config, data, options)
        with suppress(EnoughError), watched_by(watcher):
            fit(config, data, Path(scratch) / "run")
    show({name: values[1:] for name, values in watcher.times.items()})  # the first warms up


def show(times: common.Times) -> None:
    times["difference"] = [a - b for a, b in zip(times["fit"], times["bare loop"], strict=True)]
    found = {
        name: {"ms": common.spread(ms), "share": common.ratio(times, name, "fit")}
        for name, ms in times.items()
    }
    columns = {"loop": "{name}", "ms per step: median (p10 - p90)": "{ms:.2f}"}
    common.table({**columns, "share of fit": "{share:.1%}"}, common.named(found))
    share = 100 * found["difference"]["share"].median
    targets = [common.target("Lightning's share of the loop", share, 5, "%")]
    progress = "bar" if sys.stderr.isatty() else "lines"
    common.report("loop", {"loops": found, "progress": progress}, targets)


if __name__ == "__main__":
    main()
