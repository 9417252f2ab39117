"""The stop watch that every contender carries, and what they share. Standard library and numpy.

Each contender is a process of its own: it sets itself up, enters its training loop and calls
`Clock.tick` at the start of every step. The time from one tick to a later one holds everything a
loop does: forward, backward, optimizer, logging, and the making of the next batch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any, NamedTuple

import numpy as np

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}  # cpu: of all threads
WATCH, RATING = 0, 1
LEARNING_RATE = 4e-4
EMBEDDING_DIM, EXPERT_DIM, TOWER_DIM, DROPOUT, K = 128, 256, 256, 0.5, 2


class Rows(NamedTuple):
    """Training rows: int64 indices (N,), float32 labels (N, 2) with NaN where missing."""

    user: np.ndarray
    item: np.ndarray
    labels: np.ndarray
    users: int
    items: int

    def sizes(self) -> dict[str, int]:
        """Rows of the embedding tables."""
        return {"user": self.users + 1, "item": self.items + 1}


class Clock:
    """Ends the process, with one line of JSON on stdout, when enough steps are measured."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.now = CLOCKS[options.clock]
        self.ticks: list[float] = []
        self.warm = 0

    def tick(self, *unused: Any) -> None:
        """At the start of a training step. The warm-up ends by steps and by seconds."""
        self.ticks.append(self.now())
        step, options = len(self.ticks) - 1, self.options
        if not self.warm:
            seconds = self.ticks[-1] - self.ticks[0]
            if step >= options.warm_up_steps and seconds >= options.warm_up_seconds:
                self.warm = step
            elif step >= options.full_batches:
                sys.exit("error: an epoch is over before the warm-up; use more rows")
            return
        seconds = self.ticks[-1] - self.ticks[self.warm]
        enough = step - self.warm >= options.steps and seconds >= options.seconds
        if enough or step >= options.full_batches:
            self._finish(step - self.warm, seconds)

    def _finish(self, steps: int, seconds: float) -> None:
        """Exits without clean-up: neither the rest of the epoch nor validation is measured."""
        result = {
            "examples_per_s": steps * self.options.batch_size / seconds,
            "steps": steps,
            "seconds": seconds,
            "warm_up_steps": self.warm,
        }
        print(json.dumps(result))
        sys.stdout.flush()
        os._exit(0)


def read_options() -> argparse.Namespace:
    """What compare.py tells every contender: one JSON object."""
    return argparse.Namespace(**json.loads(sys.argv[1]))


def load_rows(path: str) -> Rows:
    with np.load(path) as file:
        users, items = (int(size) for size in file["sizes"])
        return Rows(file["user"], file["item"], file["labels"], users, items)


def without_missing(labels: np.ndarray) -> np.ndarray:
    """Labels with the mean in place of NaN: the peers know no missing label."""
    return np.where(np.isnan(labels), np.nanmean(labels, axis=0), labels).astype(np.float32)
