"""`fit` on a GPU against the kernels of its steps: what the loop costs where steps are replayed.

    python benchmarks/gpu_loop.py [--rounds N]

`fit` trains the paper's model on made-up rows, with steps replayed as a CUDA graph and without, and
is timed in blocks of steps. Then the recorded step and the optimizer's are repeated back to back:
no loop can take less. Without a CUDA device it says so and ends.
"""

from __future__ import annotations

import cProfile
import logging
import pstats
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import common
import shape
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from watching import watched_by

from recsys_moe.config.settings import Config, parse_config
from recsys_moe.train.fit import fit
from recsys_moe.train.module import RecModule

BATCHES = (2048, 8192)
SETTLE = 12
"""Steps before the first block: those that warm up, the one that is recorded, and a few more."""


class EnoughError(Exception):
    """All rounds are measured."""


class Watcher(Callback):
    """Times blocks of steps, then the kernels alone."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.fit_ms: list[float] = []
        self.kernels_ms: list[float] = []
        self.has_replayed = False
        self.profiler = cProfile.Profile()

    def on_train_batch_start(
        self, trainer: Trainer, module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        done, place = divmod(batch_idx - SETTLE, self.options.block)
        is_last = done == self.options.rounds or batch_idx == trainer.num_training_batches - 1
        if done < 0 or (place and not is_last):
            return
        common.synchronise()
        now = time.perf_counter()
        if done and not place:
            self.fit_ms.append(1e3 * (now - self.start) / self.options.block)
        if is_last:
            self.profiler.disable()
            assert isinstance(module, RecModule)
            self.repeat(trainer, module)
            raise EnoughError
        if done == self.options.rounds - 1 and self.options.profile:
            self.profiler.enable()
        self.start = time.perf_counter()

    def repeat(self, trainer: Trainer, module: RecModule) -> None:
        """Replays and steps of the optimizer, nothing else."""
        if module.recorder is None or not module.recorder.has_replayed:
            return
        self.has_replayed = True
        replay, optimizer = module.recorder._recorded, trainer.optimizers[0]
        for _ in range(self.options.rounds):
            common.synchronise()
            start = time.perf_counter()
            for _ in range(self.options.block):
                replay()
                optimizer.step()
            common.synchronise()
            self.kernels_ms.append(1e3 * (time.perf_counter() - start) / self.options.block)


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=5, clock=False)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda",
                        help="cpu only tests this script")  # fmt: skip
    parser.add_argument("--block", type=int, default=30, help="steps per block")
    parser.add_argument("--ratings", type=int, default=1_000_000, help="size of the made-up rows")
    parser.add_argument("--batch-size", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--precision", nargs="+", default=["32-true"])
    parser.add_argument(
        "--profile", action="store_true", help="functions that take the loop's time"
    )
    options = common.parse(parser, argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        common.skip("gpu_loop", f"torch {torch.__version__} sees no CUDA device")
        return
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="gpu-loop-") as scratch:
        data = shape.make_data(Path(scratch) / "data", options.ratings)
        shapes = [(size, precision) for precision in options.precision
                  for size in options.batch_size]  # fmt: skip
        found = [measure(options, data, *shape) for shape in shapes]
    columns = {"batch": "{batch_size}", "precision": "{precision}", "fit, ms a step": "{fit:.2f}"}
    columns |= {"without replay": "{eager:.2f}", "its kernels": "{kernels:.2f}"}
    common.table({**columns, "fit / kernels": "{ratio:.2f}"}, found)
    targets = [
        common.target(f"fit at {row['batch_size']} over its kernels", row["ratio"], 1.3, "x")
        for row in found
        if row["ratio"]
    ]
    common.report("gpu_loop", {"results": found}, targets)


def measure(options: Any, data: Path, batch_size: int, precision: str) -> dict[str, Any]:
    """Milliseconds of a step, medians; 0 for what could not be measured."""
    found: dict[str, float] = {"fit": 0.0, "eager": 0.0, "kernels": 0.0}
    for name, setting in (("fit", "auto"), ("eager", False)):
        accelerator = {"cuda": "gpu"}.get(options.device, "cpu")
        trainer = {"batch_size": batch_size, "cuda_graph": setting, "accelerator": accelerator}
        config = parse_config({"trainer": {**trainer, "precision": precision, "max_epochs": 1}})
        watcher = Watcher(options)
        try:
            train(config, data, watcher)
        except Exception:
            print(f"{name} at {batch_size} {precision} failed:\n{traceback.format_exc()}")
            continue
        found[name] = common.spread(watcher.fit_ms).median
        if watcher.kernels_ms:
            found["kernels"] = common.spread(watcher.kernels_ms).median
        print(f"{name} {batch_size} {precision} replayed={watcher.has_replayed}: "
              f"{[round(ms, 3) for ms in watcher.fit_ms]} ms, kernels "
              f"{[round(ms, 3) for ms in watcher.kernels_ms]}", flush=True)  # fmt: skip
        if options.profile:
            pstats.Stats(watcher.profiler).sort_stats("tottime").print_stats(18)
    ratio = found["fit"] / found["kernels"] if found["kernels"] else 0.0
    return {"batch_size": batch_size, "precision": precision, **found, "ratio": ratio}


def train(config: Config, data: Path, watcher: Watcher) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="gpu-loop-") as scratch,
        suppress(EnoughError),
        watched_by(watcher),
    ):
        fit(config, data, Path(scratch) / "run")


if __name__ == "__main__":
    main()
