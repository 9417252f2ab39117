"""What `trainer.precision=bf16-mixed` changes on this CPU: speed, AUC and MSE.

    python benchmarks/precision.py [--data DIR] [--seeds N] [--epochs N] [--clock wall|cpu]

1. A step of the paper's model at batch 512 and 8192, and one matmul, in float32 and under bfloat16
   autocast, in turn.
2. Fits of `movielens_100k` in both precisions, seed by seed. The change of a metric is the mean of
   the paired differences, with their standard deviation beside the seeds' own.
Without --data the rows are made up in MovieLens-100K's size. Where torch emulates bfloat16, 10 to
100 times as slowly, few rounds are timed and nothing is trained unless --emulated.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import common
import torch
from shape import Step, build_model, make_data

from recsys_moe.config.files import merge, read_config_file
from recsys_moe.config.settings import parse_config
from recsys_moe.machine import has_fast_bf16
from recsys_moe.train.fit import fit
from recsys_moe.train.processes.memory import training_process

FULL, MIXED = "32-true", "bf16-mixed"
USERS, ITEMS, RATINGS = 943, 1682, 100_000
METRICS = {"watch AUC": ("watch", "auc"), "rating MSE": ("rating", "mse")}
MATMUL = 1024


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=30)
    parser.add_argument("--data", type=Path, help="prepared folder of MovieLens-100K")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, nargs="+", default=[512, 8192])
    parser.add_argument("--ratings", type=int, default=RATINGS, help="of the made-up rows")
    parser.add_argument("--emulated", action="store_true", help="train where it is emulated, too")
    options = common.parse(parser, argv)
    if options.quick:
        options.seeds, options.epochs, options.ratings = 2, 1, 20_000
    logging.getLogger("recsys_moe").setLevel(logging.WARNING)
    flags = [flag for flag in common.cpu_flags() if flag in ("avx512_bf16", "amx_bf16")]
    print(f"bfloat16 instructions of the processor: {', '.join(flags) or 'none'}\n")
    is_slow = not (has_fast_bf16() or options.emulated)
    if is_slow:
        options.rounds, options.batch_size = min(options.rounds, 3), options.batch_size[:1]
    speed = compare_speed(options)
    found = {"skipped": "torch emulates bfloat16 here"} if is_slow else quality(options)
    common.report("precision", {"flags": flags, "speed": speed, "quality": found})


def compare_speed(options: Any) -> dict[str, Any]:
    """Step and matmul in both precisions, in turn."""
    bf16 = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    calls: dict[str, common.Call] = {}
    with training_process():
        for rows in options.batch_size:
            name = f"step, batch {rows}"
            calls |= {f"{name} {FULL}": Step(build_model(), rows).whole,
                      f"{name} {MIXED}": Step(build_model(), rows, cast=bf16).whole}  # fmt: skip
        name = f"matmul of {MATMUL} squares"
        calls |= {f"{name} {FULL}": _matmul(torch.float32),
                  f"{name} {MIXED}": _matmul(torch.bfloat16)}  # fmt: skip
        times = common.in_turn(calls, options.rounds, options.clock)
    names = [name.removesuffix(f" {FULL}") for name in calls if name.endswith(FULL)]
    rows, found = [], {}
    for name in names:
        full, mixed = (common.spread(times[f"{name} {p}"]) for p in (FULL, MIXED))
        gain = common.ratio(times, f"{name} {FULL}", f"{name} {MIXED}")
        rows.append([name, f"{full:.2f}", f"{mixed:.2f}", f"{gain:.2f}"])
        found[name] = {FULL: full, MIXED: mixed, "gain": gain}
    common.table(["what", f"{FULL}, ms", f"{MIXED}, ms", "times as fast"], rows)
    return found


def _matmul(dtype: torch.dtype) -> common.Call:
    a, b = (torch.rand(MATMUL, MATMUL, dtype=dtype) for _ in range(2))
    return lambda: a @ b


def quality(options: Any) -> dict[str, Any]:
    """Metrics of the best epoch on the validation split, per precision and seed."""
    results: dict[str, list[dict[str, Any]]] = {FULL: [], MIXED: []}
    with tempfile.TemporaryDirectory(prefix="precision-") as scratch:
        data = options.data or make_data(Path(scratch) / "data", USERS, ITEMS, options.ratings)
        for seed in range(options.seeds):
            for precision in results:
                start = time.perf_counter()
                result = fit(_config(precision, seed, options.epochs), data, Path(scratch) / "run",
                             overwrite=True)  # fmt: skip
                seconds = time.perf_counter() - start
                results[precision].append(_metrics(result) | {"seconds": seconds})
    found = {name: _change(results, name) for name in METRICS}
    common.table(
        [f"{options.seeds} seeds, {options.epochs} epochs", FULL, MIXED, "change", "sd of change",
         "sd of seeds"],
        [[name, *(f"{value:.4f}" for value in change.values())] for name, change in found.items()],
    )  # fmt: skip
    return {"epochs": options.epochs, "changes": found, "runs": results}


def _config(precision: str, seed: int, epochs: int) -> Any:
    trainer = {"precision": precision, "seed": seed, "max_epochs": epochs}
    return parse_config(merge(read_config_file("movielens_100k"), {"trainer": trainer}))


def _metrics(result: dict[str, Any]) -> dict[str, float]:
    return {name: result["tasks"][task][key] for name, (task, key) in METRICS.items()}


def _change(results: dict[str, list[dict[str, Any]]], metric: str) -> dict[str, float]:
    full, mixed = ([run[metric] for run in results[precision]] for precision in (FULL, MIXED))
    changes = [b - a for a, b in zip(full, mixed, strict=True)]
    return {
        FULL: statistics.mean(full), MIXED: statistics.mean(mixed),
        "change": statistics.mean(changes), "sd_of_change": _sd(changes), "sd_of_seeds": _sd(full),
    }  # fmt: skip


def _sd(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


if __name__ == "__main__":
    main()
