"""What feeding costs: the share of a training step spent on making its batch.

    python benchmarks/feeding.py [--rows N] [--steps N]

MovieLens-1M's shape (6,040 users, 3,706 items, batch 512, MOESART k=2 of 16 experts), random rows.
Batches and steps are timed in turn within one run; a table for people, then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator

import torch

from recsys_moe.columns import Batch, Columns, TrainBatches
from recsys_moe.model import MultiTaskMoE
from recsys_moe.routers.moesart import MoesartRouter
from recsys_moe.schema import Feature, Schema
from recsys_moe.tasks import mean_loss

USERS, ITEMS, BATCH, WARM_UP = 6040, 3706, 512, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_574_602)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    torch.set_flush_denormal(True)
    batches = iter(TrainBatches(columns(options.rows), schema(), BATCH, 0.002, seed=0))
    step = training_step()
    feeding, training = timed(batches, step, options.steps)
    report(options, feeding, training)


def timed(batches: Iterator[Batch], step: object, steps: int) -> tuple[list[float], list[float]]:
    """Milliseconds per batch and per step, after a warm-up that also pays for the shuffle."""
    feeding, training = [], []
    for _ in range(WARM_UP + steps):
        start = time.perf_counter()
        batch = next(batches)
        middle = time.perf_counter()
        step(batch)  # type: ignore[operator]
        feeding.append(1e3 * (middle - start))
        training.append(1e3 * (time.perf_counter() - middle))
    return feeding[WARM_UP:], training[WARM_UP:]


def training_step() -> object:
    model = MultiTaskMoE(USERS, ITEMS, 2, router=MoesartRouter.Config())
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-4, eps=1e-7, fused=True)

    def step(batch: Batch) -> None:
        logits = model(batch.user, batch.item).logits_BT
        watch = mean_loss("binary", logits[:, 0], batch.labels[:, 0])
        rating = mean_loss("regression", logits[:, 1], batch.labels[:, 1])
        optimizer.zero_grad()
        (0.9 * watch + 0.1 * rating).backward()
        optimizer.step()

    return step


def columns(rows: int) -> Columns:
    user = torch.randint(0, USERS, (rows,), dtype=torch.int32)
    item = torch.randint(0, ITEMS, (rows,), dtype=torch.int32)
    watch = torch.randint(0, 2, (rows, 1)).float()
    rating = torch.randint(1, 6, (rows, 1)).float().masked_fill(watch == 0, torch.nan)
    return Columns(user, item, torch.cat([watch, rating], 1))


def schema() -> Schema:
    user = Feature(name="user", column="user_index", size=USERS, id_type="int64")
    item = Feature(name="item", column="item_index", size=ITEMS, id_type="int64")
    return Schema(
        name="random", protocol="paper", vocabulary="all", user=user, item=item,
        tasks=(), rows={}, labels={},
    )  # fmt: skip


def shuffle_share(rows: int, step_ms: float) -> float:
    """The shuffle of an epoch, spread over its steps, as a share of a step."""
    start = time.perf_counter()
    torch.randperm(rows)
    return 1e3 * (time.perf_counter() - start) / -(-rows // BATCH) / step_ms


def report(options: argparse.Namespace, feeding: list[float], training: list[float]) -> None:
    feed, train = statistics.median(feeding), statistics.median(training)
    share = feed / train + shuffle_share(options.rows, train)
    spread = [statistics.quantiles(values, n=10) for values in (feeding, training)]
    print(f"{'':10} {'median ms':>10} {'p10':>8} {'p90':>8}")
    for name, median, tenths in zip(("feeding", "step"), (feed, train), spread, strict=True):
        print(f"{name:10} {median:10.3f} {tenths[0]:8.3f} {tenths[-1]:8.3f}")
    print(f"share of feeding, shuffle included: {100 * share:.2f}%")
    facts = {"rows": options.rows, "cpus": os.cpu_count(), "torch": torch.__version__}
    numbers = {"feeding_ms": feed, "step_ms": train, "share": share}
    print(json.dumps({"benchmark": "feeding", **facts, **numbers}))


if __name__ == "__main__":
    main()
