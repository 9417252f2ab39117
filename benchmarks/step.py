"""One training step against its floor: the same FLOPs and bytes at the machine's own rates.

    python benchmarks/step.py [--rounds N] [--clock wall|cpu]

The paper's MovieLens-1M shape. Each round runs an untimed step, as a training loop has one before
every step, then a timed one (forward, backward, optimizer), sgemm on squares, and a copy of as many
bytes as Adam moves. The floor is what README.md derives. Ratios are taken within a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import common
import torch
from shape import BATCH, Step, build_model
from torch import nn

from recsys_moe.model.mtmoe import MultiTaskMoE
from recsys_moe.train.processes.memory import training_process

SQUARES = (512, 1024, 2048)
BYTES_PER_PARAMETER = 28
"""Adam in float32 reads p, g, m, v and writes p, m, v."""
FLOORS = {
    "forward": None, "backward": None, "forward + backward": "GEMM floor", "optimizer": "copy",
    "step": "floor", "GEMM floor": None, "copy": None, "floor": None,
}  # fmt: skip
"""The rows of the table, and to which other one each is compared."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=60)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=BATCH)
    parser.add_argument("--squares", type=int, nargs="+", default=SQUARES)
    options = common.parse(parser, argv)
    with training_process():
        step = Step(build_model(num_experts=options.experts), options.batch_size)
        step.whole()  # tells the pairs
        times = timed(step, options)
    numbers = figures(step, options, times)
    show(times)
    print("{pairs} pairs: {flops:,} FLOP at {gflops_per_s:.0f} GFLOP/s (sgemm {square}), {bytes:,} "
          "bytes at {copy_gb_per_s:.1f} GB/s\n".format(**numbers))  # fmt: skip
    over = numbers["over_floor"].median
    common.report("step", numbers, [common.target("step over its floor", over, 1.8, "x")])


def timed(step: Step, options: Any) -> common.Times:
    """The parts of the step and its rivals, in turn."""
    calls: dict[str, common.Call] = {
        # Untimed: the rivals leave 100 MB of their own in the caches, a loop of steps does not.
        "settling": step.whole,
        "forward": step.forward, "backward": step.backward, "optimizer": step.optimize,
        "copy": copy(adam_bytes(step.model)),
        **{f"sgemm {n}": square(n) for n in options.squares},
    }  # fmt: skip
    return common.in_turn(calls, options.rounds, options.clock)


def figures(step: Step, options: Any, times: common.Times) -> dict[str, Any]:
    """What the report says; adds the floors to `times`."""
    pairs, moved = step.pairs, adam_bytes(step.model)
    flops = step_flops(step.model, options.batch_size, pairs)
    rates = {n: rate(2 * n**3, times[f"sgemm {n}"]) for n in options.squares}
    best = max(rates, key=lambda n: rates[n])
    add_floors(times, best, flops)
    return {
        "ms": {name: common.spread(values) for name, values in times.items()}, "flops": flops,
        "over_floor": common.ratio(times, "step", "floor"), "bytes": moved, "pairs": pairs,
        "square": best, "gflops_per_s": rates[best],
        "copy_gb_per_s": 1e-6 * moved / common.spread(times["copy"]).median,
    }  # fmt: skip


def adam_bytes(model: MultiTaskMoE) -> int:
    return BYTES_PER_PARAMETER * sum(p.numel() for p in model.parameters())


def rate(flops: float, times: Sequence[float]) -> float:
    """GFLOP/s of a call by its milliseconds."""
    return 1e-6 * flops / common.spread(times).median


def add_floors(times: common.Times, best: int, flops: int) -> None:
    """Sums of what was timed; `best`: the square with sgemm's best rate."""
    sgemm = times[f"sgemm {best}"]
    times["GEMM floor"] = [ms * flops / (2 * best**3) for ms in sgemm]
    times["forward + backward"] = common.total(times, "forward", "backward")
    times["step"] = common.total(times, "forward + backward", "optimizer")
    times["floor"] = common.total(times, "GEMM floor", "copy")


def step_flops(model: MultiTaskMoE, rows: int, pairs: int) -> int:
    """Multiply-adds count two; the backward pass has two matmuls per matmul of the forward pass."""
    linear = sum(x.weight.numel() for x in model.modules() if isinstance(x, nn.Linear))
    _, width, expert_dim = model.moe.experts.kernel_EDH.shape
    return 3 * 2 * (rows * linear + pairs * width * expert_dim)


def copy(size: int) -> common.Call:
    """Reads and writes `size` bytes together."""
    source = torch.zeros(size // 8)
    to = torch.zeros_like(source)
    return lambda: to.copy_(source)


def square(n: int) -> common.Call:
    a, b, out = torch.rand(n, n), torch.rand(n, n), torch.empty(n, n)
    return lambda: torch.mm(a, b, out=out)


def show(times: common.Times) -> None:
    rows = [
        {"part": part, "ms": common.spread(times[part]), "floor": floor or "",
         "ratio": f"{common.ratio(times, part, floor):.2f}" if floor else ""}
        for part, floor in FLOORS.items()
    ]  # fmt: skip
    columns = {"part": "{part}", "ms: median (p10 - p90)": "{ms:.2f}"}
    common.table({**columns, "ratio within a round": "{ratio}", "to": "{floor}"}, rows)


if __name__ == "__main__":
    main()
