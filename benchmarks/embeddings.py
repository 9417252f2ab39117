"""What moving the embedding tables costs per step: dense fused Adam against LazyAdam.

    python benchmarks/embeddings.py [--rows 10000 100000] [--rounds N] [--batch N]

One table of each size, width 128: look up a batch, backward, step; the two in turn, on the same
rows. Rows are drawn by Zipf's law or uniformly (where few rows repeat, the worst case of the lazy
one). Timed apart: the flush, once per epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import common
import torch
from torch import Tensor, nn

from recsys_moe.model.lazy_adam import LazyAdam
from recsys_moe.train.processes.memory import training_process

DIM = 128
BEGINNING = 66
"""Steps in which LazyAdam completes all rows again and again: not timed."""
BATCHES = 50
"""Batches that a table goes through in a circle."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=100)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--batch", type=int, default=512)
    options = common.parse(parser, argv)
    with training_process():
        found = [
            compare(rows, drawn, options) for rows in options.rows for drawn in ("zipf", "uniform")
        ]
    columns = {
        "rows": "{rows}", "drawn": "{drawn}", "dense, ms": "{dense:.2f}", "lazy, ms": "{lazy:.2f}",
        "dense / lazy": "{ratio:.2f}", "flush, ms": "{flush:.1f}",
    }  # fmt: skip
    common.table(columns, found)
    common.report("embeddings", {"dim": DIM, "batch": options.batch, "results": found})


def compare(rows: int, drawn: str, options: Any) -> dict[str, Any]:
    """Milliseconds of both ways, their ratio within a round, and of the flush."""
    torch.manual_seed(0)
    batches = [draw(rows, options.batch, drawn) for _ in range(BATCHES)]
    dense, _ = training_step(rows, batches, lazy=False)
    lazy, flush = training_step(rows, batches, lazy=True)
    for _ in range(BEGINNING):
        lazy()
    times = common.in_turn({"dense": dense, "lazy": lazy}, options.rounds, options.clock)
    times |= common.in_turn({"flush": flush}, 1, options.clock, warm_up=0)
    return {
        "rows": rows,
        "drawn": drawn,
        **{name: common.spread(times[name]) for name in ("dense", "lazy")},
        "ratio": common.ratio(times, "dense", "lazy"),
        "flush": times["flush"][0],
    }


def training_step(
    rows: int, batches: Iterable[Tensor], *, lazy: bool
) -> tuple[common.Call, Callable[[], None]]:
    """A step on the next batch, and the flush (of LazyAdam alone)."""
    table, source = nn.Embedding(rows, DIM, sparse=lazy), itertools.cycle(batches)
    nn.init.uniform_(table.weight, -0.05, 0.05)
    settings = {"lr": 4e-4, "eps": 1e-7}
    moved = LazyAdam(table.parameters(), [table.weight], **settings) if lazy else None
    optimizer = moved or torch.optim.Adam(table.parameters(), **settings, fused=True)
    target_D = torch.randn(DIM)

    def step() -> None:
        index_B = next(source)
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


if __name__ == "__main__":
    main()
