"""What moving the embedding tables costs per step: dense fused Adam against LazyAdam.

    python benchmarks/embeddings.py [--rows 10000 100000] [--steps N] [--batch N]

One table of each size, width 128: look up a batch, backward, step; the two in turn. Rows are drawn
by Zipf's law or uniformly (where few rows repeat, the worst case of the lazy one). Timed apart: the
flush, once per epoch, and the first 66 steps of LazyAdam. A table for people, then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from recsys_moe.lazy_adam import LazyAdam

DIM, WARM_UP, SETTLE = 128, 66, 5
Step = Callable[[Tensor], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    torch.set_flush_denormal(True)
    results = [
        compare(rows, options.batch, options.steps, drawn)
        for rows in options.rows
        for drawn in ("zipf", "uniform")
    ]
    report(results)
    facts = {"dim": DIM, "batch": options.batch, "steps": options.steps, "cpus": os.cpu_count()}
    print(json.dumps({"benchmark": "embeddings", **facts, "results": results}))


def compare(rows: int, batch: int, steps: int, drawn: str) -> dict[str, object]:
    """Medians, tenths and the median of the ratios of neighbouring steps, in milliseconds."""
    torch.manual_seed(0)
    dense = training_step(rows, lazy=False)[0]
    lazy, flush = training_step(rows, lazy=True)
    warm_up_ms = sum(timed(lazy, draw(rows, batch, drawn)) for _ in range(WARM_UP))
    batches = [draw(rows, batch, drawn) for _ in range(SETTLE + steps)]
    measured = [(timed(dense, index_B), timed(lazy, index_B)) for index_B in batches][SETTLE:]
    ratio = statistics.median(a / b for a, b in measured)
    numbers = {
        name: {"median": statistics.median(times), **spread(times)}
        for name, times in zip(("dense", "lazy"), zip(*measured, strict=True), strict=True)
    }
    flush_ms = timed(lambda _: flush(), torch.empty(0))
    return {
        "rows": rows,
        "drawn": drawn,
        **numbers,
        "ratio": ratio,
        "flush": flush_ms,
        "warm_up": warm_up_ms,
    }


def training_step(rows: int, *, lazy: bool) -> tuple[Step, Callable[[], None]]:
    table = nn.Embedding(rows, DIM, sparse=lazy)
    nn.init.uniform_(table.weight, -0.05, 0.05)
    settings = {"lr": 4e-4, "eps": 1e-7}
    moved = LazyAdam(table.parameters(), [table.weight], **settings) if lazy else None
    optimizer = moved or torch.optim.Adam(table.parameters(), **settings, fused=True)
    target_D = torch.randn(DIM)

    def step(index_B: Tensor) -> None:
        if moved is not None:
            moved.catch_up(table.weight, index_B)
        loss = (table(index_B) @ target_D).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, moved.flush if moved is not None else lambda: None


def draw(rows: int, batch: int, drawn: str) -> Tensor:
    """Row indices (B,); Zipf's law with exponent 1 is a log-uniform rank."""
    if drawn == "uniform":
        return torch.randint(rows, (batch,))
    return (torch.tensor(float(rows)) ** torch.rand(batch)).long().clamp(max=rows) - 1


def timed(call: Step, index_B: Tensor) -> float:
    start = time.perf_counter()
    call(index_B)
    return 1e3 * (time.perf_counter() - start)


def spread(times: tuple[float, ...]) -> dict[str, float]:
    tenths = statistics.quantiles(times, n=10)
    return {"p10": tenths[0], "p90": tenths[-1]}


def report(results: list[dict[str, object]]) -> None:
    print(f"{'rows':>9} {'drawn':8} {'dense ms (p10-p90)':>24} {'lazy ms (p10-p90)':>24} "
          f"{'dense/lazy':>10} {'flush ms':>9} {'warm-up ms':>10}")  # fmt: skip
    for row in results:
        cells = [
            f"{times['median']:.2f} ({times['p10']:.2f}-{times['p90']:.2f})"  # type: ignore[index]
            for times in (row["dense"], row["lazy"])
        ]
        print(f"{row['rows']:9} {row['drawn']:8} {cells[0]:>24} {cells[1]:>24} "
              f"{row['ratio']:10.2f} {row['flush']:9.1f} {row['warm_up']:10.0f}")  # fmt: skip


if __name__ == "__main__":
    main()
