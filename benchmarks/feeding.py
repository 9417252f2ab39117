"""What feeding costs: the share of a training step spent on making its batch.

    python benchmarks/feeding.py [--rows N] [--rounds N]

MovieLens-1M's shape (6,040 users, 3,706 items, batch 512, MOESART k=2 of 16 experts), random rows.
Batches and steps are timed in turn within one run; a table for people, then one JSON line.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import common
import torch
from shape import BATCH, TRAIN_ROWS, Step, build_model, random_columns, schema

from recsys_moe.data.batches import TrainBatches
from recsys_moe.train.processes.memory import training_process

WARM_UP = 10


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=200)
    parser.add_argument("--rows", type=int, default=TRAIN_ROWS)
    options = common.parse(parser, argv)
    with training_process():
        step = Step(build_model())
        columns = random_columns(options.rows)
        step.batches = iter(TrainBatches(columns, schema(), BATCH, unseen_rate=0.002, seed=0))
        feeding = Feeding(step)
        calls = {"feeding": feeding.fetch, "step": feeding.train}
        times = common.in_turn(calls, options.rounds, options.clock, WARM_UP)
    per_batch = shuffle_ms(options.rows) / -(-options.rows // BATCH)
    times["shuffle of the epoch, per batch"] = [per_batch] * len(times["step"])
    times["all feeding"] = [ms + per_batch for ms in times["feeding"]]
    common.table(
        ["part", "ms: median (p10 - p90)", "share of a step"],
        [
            [name, f"{common.spread(ms):.3f}", f"{common.ratio(times, name, 'step'):.2%}"]
            for name, ms in times.items()
        ],
    )
    ms = {name: common.spread(values) for name, values in times.items()}
    share = common.ratio(times, "all feeding", "step")
    common.report("feeding", {"rows": options.rows, "ms": ms, "share": share})


class Feeding:
    """Fetches a batch, then trains on it."""

    def __init__(self, step: Step) -> None:
        self.step, self.source = step, step.batches

    def fetch(self) -> None:
        self.step.batches = iter([next(self.source)])

    def train(self) -> None:
        self.step.whole()


def shuffle_ms(rows: int) -> float:
    """The shuffle at the start of an epoch."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        torch.randperm(rows)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


if __name__ == "__main__":
    main()
