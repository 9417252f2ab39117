"""What moving the embedding tables costs per step: dense fused Adam against LazyAdam.

    python benchmarks/embeddings.py [--rows 10000 100000] [--rounds N] [--batch N]

One table of each size, width 128: look up a batch, backward, step; the two in turn, on the same
rows. Rows are drawn by Zipf's law or uniformly (where few rows repeat, the worst case of the lazy
one). Timed apart: the flush, once per epoch, and the first 66 steps of LazyAdam.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import common
import torch
from torch import Tensor, nn

from recsys_moe.model.lazy_adam import LazyAdam
from recsys_moe.train.processes.memory import training_process

DIM, WARM_UP = 128, 66
BATCHES = 50
"""Batches that a table goes through in a circle."""
Step = Callable[[Tensor], None]


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=100)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--batch", type=int, default=512)
    options = common.parse(parser, argv)
    with training_process():
        found = [
            compare(rows, drawn, options) for rows in options.rows for drawn in ("zipf", "uniform")
        ]
    show(found)
    common.report("embeddings", {"dim": DIM, "batch": options.batch, "results": found})


def compare(rows: int, drawn: str, options: Any) -> dict[str, Any]:
    """Milliseconds of both ways, their ratio within a round, and what is timed apart."""
    torch.manual_seed(0)
    dense, _ = training_step(rows, lazy=False)
    lazy, flush = training_step(rows, lazy=True)
    batches = [draw(rows, options.batch, drawn) for _ in range(BATCHES)]
    begun = common.in_turn(
        {"first": lambda: [lazy(index_B) for index_B in circle(batches, WARM_UP)]}, 1, warm_up=0
    )
    sources = [itertools.cycle(batches) for _ in range(2)]
    times = common.in_turn(
        {"dense": lambda: dense(next(sources[0])), "lazy": lambda: lazy(next(sources[1]))},
        options.rounds,
        options.clock,
    )
    flushed = common.in_turn({"flush": flush}, 1, warm_up=0)
    return {
        "rows": rows,
        "drawn": drawn,
        **{name: common.spread(times[name]) for name in ("dense", "lazy")},
        "ratio": common.ratio(times, "dense", "lazy"),
        "flush": flushed["flush"][0],
        "warm_up": begun["first"][0],
    }


def circle(batches: list[Tensor], steps: int) -> list[Tensor]:
    return list(itertools.islice(itertools.cycle(batches), steps))


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


def show(found: list[dict[str, Any]]) -> None:
    common.table(
        ["rows", "drawn", "dense, ms", "lazy, ms", "dense / lazy", "flush, ms", "first 66, ms"],
        [
            [f"{row['rows']}", row["drawn"], f"{row['dense']:.2f}", f"{row['lazy']:.2f}",
             f"{row['ratio']:.2f}", f"{row['flush']:.1f}", f"{row['warm_up']:.0f}"]
            for row in found
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
