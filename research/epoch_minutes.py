"""Seconds per training epoch of several routers, measured in turn, and their ratios to the first.

    python -m research.epoch_minutes --data DIR --routers softmax,pps,topk [--settings FILE]
        [--config NAME] [--rounds N] [--steps N] [--warm-up N] [--threads N] [--validate ROWS]

One process keeps every router's model and optimizer. In a round each trains a block of steps, the
first of them untimed; rounds go through the routers forwards and backwards, so that what drifts
falls on all alike. Routers and settings are as `compare` takes them; the steps are those of `fit`
without Lightning and `optim.ema_decay`, which cost all about the same. --validate times also the
forward passes and metrics of the first rows of the validation split; both are scaled to a whole
epoch.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import lightning as L
import torch

from benchmarks import common
from recsys_moe.artifact.evaluation import evaluate_model
from recsys_moe.cli.compare import read_sections
from recsys_moe.config.files import read_config_file
from recsys_moe.config.settings import parse_config
from recsys_moe.data.batches import EvalBatches
from recsys_moe.data.rows import Columns
from recsys_moe.errors import ConfigError, DataError
from recsys_moe.lab.compare.plan import make_plan
from recsys_moe.lab.compare.request import ComparisonRequest
from recsys_moe.train.loader import RecDataModule
from recsys_moe.train.module import RecModule
from recsys_moe.train.processes.memory import training_process

RESAMPLES = 2000


class Interval(NamedTuple):
    """A median over rounds; its 95% interval by resampling the rounds."""

    median: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        return " ".join(["{:{s}}", "({:{s}} - {:{s}})"]).format(*self, s=spec)


class Alone(RecModule):
    """Counts its steps itself, as no Trainer does; its random draws and schedules follow them."""

    steps = 0

    @property
    def global_step(self) -> int:
        return self.steps


class Contestant:
    """A router in training."""

    def __init__(self, raw: dict[str, Any], data: Path, validate: int) -> None:
        self.config = parse_config(raw)
        datamodule = RecDataModule(data, self.config)
        self.module = Alone(raw, datamodule.schema.to_json())
        self.module.set_up(datamodule)
        epochs = map(datamodule.train_batches, itertools.count())
        self.batches = itertools.chain.from_iterable(epochs)
        self.steps_per_epoch = len(datamodule.train_batches(0))
        self.module._steps_per_epoch = self.steps_per_epoch
        self.optimizer: Any = self.module.train().make_optimizer()
        self.fabric = L.Fabric(accelerator="cpu", precision=self.config.trainer.precision)
        self.val, self.val_share = self._part(datamodule, validate)

    def _part(self, datamodule: RecDataModule, rows: int) -> tuple[EvalBatches | None, float]:
        """Batches of the first `rows` of the validation split, and which share of it they are."""
        val = datamodule.rows("val")
        count = min(rows, len(val))
        if not count:
            return None, 0.0
        if not isinstance(val, Columns):
            raise ConfigError("--validate needs a validation split that fits data.max_memory_mb")
        part = Columns(*val.take(slice(0, count)))
        return EvalBatches(part, self.config.eval_rows), count / len(val)

    def train(self, steps: int) -> None:
        self.module.train()
        for _ in range(steps):
            step = self.module.steps
            with self.fabric.autocast():
                loss = self.module.training_step(next(self.batches), step % self.steps_per_epoch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.module.steps = step + 1

    def validate(self) -> None:
        assert self.val is not None
        model = self.module.model.eval()
        with self.fabric.autocast():
            evaluate_model(model, self.val, self.module.schema, self.config, split="val")


@dataclass
class Block:
    """What one block of a router took, scaled to a whole epoch. Seconds."""

    training: float
    validation: float

    @property
    def epoch(self) -> float:
        return self.training + self.validation


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=15)
    parser.add_argument("--data", type=Path, required=True, help="prepared folder")
    parser.add_argument("--routers", required=True, metavar="NAME,...", help="first the base")
    parser.add_argument("--config", help="YAML file, or the name of a shipped config")
    parser.add_argument("--settings", type=Path, help="YAML: sections per router, as of compare")
    parser.add_argument("--steps", type=int, default=150, help="timed steps per block")
    parser.add_argument("--warm-up", type=int, default=20, help="untimed steps before them")
    parser.add_argument("--threads", type=int, help="of torch")
    parser.add_argument("--validate", type=int, default=0, metavar="ROWS", help="of validation")
    options = common.parse(parser, argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        contestants = prepare(options)
    except (ConfigError, DataError) as error:
        sys.exit(f"error: {error}")
    with training_process():
        blocks = measure(contestants, options)
    report(blocks, contestants, options)


def prepare(options: Any) -> dict[str, Contestant]:
    request = ComparisonRequest(
        routers=options.routers.split(","),
        seeds=[0],
        file=read_config_file(options.config) if options.config else None,
        settings=read_sections("--settings", options.settings),
    )
    contenders = make_plan(request, options.data).contenders.values()
    return {c.router: Contestant(c.config, options.data, options.validate) for c in contenders}


def measure(contestants: dict[str, Contestant], options: Any) -> dict[str, list[Block]]:
    """A block per router and round."""
    blocks: dict[str, list[Block]] = {name: [] for name in contestants}
    order = list(contestants.items())
    for _ in range(options.rounds):
        for name, contestant in order:
            blocks[name].append(measure_block(contestant, options))
        order.reverse()
    return blocks


def measure_block(contestant: Contestant, options: Any) -> Block:
    now = common.CLOCKS[options.clock]
    contestant.train(options.warm_up)
    start = now()
    contestant.train(options.steps)
    training = (now() - start) * contestant.steps_per_epoch / options.steps
    if contestant.val is None:
        return Block(training, 0.0)
    start = now()
    contestant.validate()
    return Block(training, (now() - start) / contestant.val_share)


def interval(values: Sequence[float]) -> Interval:
    """Percentile bootstrap; the same values give the same interval."""
    draw = random.Random(0)  # noqa: S311 - resamples, no secret
    medians = [statistics.median(draw.choices(values, k=len(values))) for _ in range(RESAMPLES)]
    cuts = statistics.quantiles(medians, n=40, method="inclusive")
    return Interval(statistics.median(values), cuts[0], cuts[-1])


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def report(
    blocks: dict[str, list[Block]], contestants: dict[str, Contestant], options: Any
) -> None:
    epochs = {name: [block.epoch for block in of_one] for name, of_one in blocks.items()}
    base = next(iter(epochs.values()))
    found = {}
    for name, seconds in epochs.items():
        low, high = quartiles(seconds)
        found[name] = {
            "seconds": statistics.median(seconds),
            "quartiles": (low, high),
            "iqr": high - low,
            "training": statistics.median(block.training for block in blocks[name]),
            "validation": statistics.median(block.validation for block in blocks[name]),
            "ratio": interval([a / b for a, b in zip(seconds, base, strict=True)]),
            "steps_per_epoch": contestants[name].steps_per_epoch,
        }
    columns = {
        "router": "{name}",
        "s/epoch: median (quartiles)": "{seconds:.1f} ({quartiles[0]:.1f} - {quartiles[1]:.1f})",
        "training": "{training:.1f}",
        "validation": "{validation:.1f}",
        f"of {next(iter(epochs))} (95%)": "{ratio:.3f}",
    }
    common.table(columns, common.named(found))
    asked = {key: getattr(options, key) for key in ("rounds", "steps", "warm_up", "validate")}
    common.report("epoch_minutes", {"routers": found, **asked, "clock": options.clock})


if __name__ == "__main__":
    main()
