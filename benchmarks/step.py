"""One training step against its floor: the same FLOPs and bytes at the machine's own rates.

    python benchmarks/step.py [--rounds N] [--clock wall|cpu]
    python benchmarks/step.py --parts          # where the step goes instead: parts.py

The paper's MovieLens-1M shape. Each round runs an untimed step, as a training loop has one before
every step, then a timed one (forward, backward, optimizer), sgemm on squares, the step's own
matmuls alone at their own shapes, and a copy of as many bytes as Adam moves. The floor is what
README.md derives; ratios are taken within a round.
"""

from __future__ import annotations

from collections.abc import Sequence

import common
import parts
import torch
from shape import Step, build_model
from torch import Tensor, nn

from recsys_moe.model.network import MultiTaskMoE
from recsys_moe.train.processes.memory import training_process

SQUARES = (512, 1024, 2048)
BYTES_PER_PARAMETER = 28
"""Adam in float32 reads p, g, m, v and writes p, m, v."""
PARTS = ("forward", "backward", "optimizer")
COPIED = 64 * 2**20
"""Bytes that a copy moves for the rate of `--parts`."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=60)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--squares", type=int, nargs="+", default=SQUARES)
    parser.add_argument("--parts", action="store_true", help="time the parts of a step instead")
    options = common.parse(parser, argv)
    with training_process():
        if options.parts:
            squares = {f"{n}": square(n) for n in options.squares}
            parts.main(options, squares, copy(COPIED), COPIED)
            return
        model = build_model(num_experts=options.experts)
        step = Step(model)
        step.forward()
        parameters = sum(p.numel() for p in model.parameters())
        calls: dict[str, common.Call] = {
            # Untimed: the rivals leave 100 MB of their own in the caches, a loop of steps does not.
            "settling": step.whole,
            "forward": step.forward, "backward": step.backward, "optimizer": step.optimize,
            "matmuls": matmuls(model, len(step.output.logits_BT), step.pairs),
            "copy": copy(parameters * BYTES_PER_PARAMETER),
        }  # fmt: skip
        calls |= {f"sgemm {n}": square(n) for n in options.squares}
        times = common.in_turn(calls, options.rounds, options.clock)
    flops = step_flops(model, len(step.output.logits_BT), step.pairs)
    show(times, flops, parameters, step.pairs, options.squares)


def step_flops(model: MultiTaskMoE, rows: int, pairs: int) -> int:
    """Multiply-adds count two; the backward pass has two matmuls per matmul of the forward pass."""
    _, width, expert_dim = model.moe.experts.kernel_EDH.shape
    linear = sum(x.weight.numel() for x in model.modules() if isinstance(x, nn.Linear))
    return 3 * 2 * (rows * linear + pairs * width * expert_dim)


def matmuls(model: MultiTaskMoE, rows: int, pairs: int) -> common.Call:
    """The three matmuls per layer, into ready memory; experts padded to equal shares."""
    kernel_EDH = model.moe.experts.kernel_EDH.detach()
    shapes = [(rows, *x.weight.shape[::-1]) for x in model.modules() if isinstance(x, nn.Linear)]
    stacks = [_operands(1, *shape) for shape in shapes]
    stacks.append(_operands(len(kernel_EDH), -(-pairs // len(kernel_EDH)), *kernel_EDH.shape[1:]))

    def run() -> None:
        for x, w, y in stacks:
            torch.bmm(x, w, out=y)
            torch.bmm(y, w.transpose(1, 2), out=x)
            torch.bmm(x.transpose(1, 2), y, out=w)

    return run


def _operands(count: int, rows: int, width: int, out: int) -> tuple[Tensor, Tensor, Tensor]:
    """Zeros: they stay zero however often they are multiplied."""
    return (torch.zeros(count, rows, width), torch.zeros(count, width, out),
            torch.zeros(count, rows, out))  # fmt: skip


def copy(size: int) -> common.Call:
    """Reads and writes `size` bytes together."""
    source = torch.zeros(size // 8)
    to = torch.zeros_like(source)
    return lambda: to.copy_(source)


def square(n: int) -> common.Call:
    a, b, out = torch.rand(n, n), torch.rand(n, n), torch.empty(n, n)
    return lambda: torch.mm(a, b, out=out)


def show(
    times: common.Times, flops: int, parameters: int, pairs: int, squares: Sequence[int]
) -> None:
    medians = {n: common.spread(times[f"sgemm {n}"]).median for n in squares}
    best = max(squares, key=lambda n: n**3 / medians[n])
    times["GEMM floor"] = [t * flops / (2 * best**3) for t in times[f"sgemm {best}"]]
    times["forward + backward"] = common.total(times, "forward", "backward")
    times["step"] = common.total(times, *PARTS)
    times["floor"] = common.total(times, "GEMM floor", "copy")
    pairings = {
        "forward": None, "backward": None, "forward + backward": "GEMM floor",
        "optimizer": "copy", "step": "floor", "GEMM floor": None, "matmuls": "GEMM floor",
        "copy": None, "floor": None,
    }  # fmt: skip
    rows = [
        [name, f"{common.spread(times[name]):.2f}",
         f"{common.ratio(times, name, floor):.2f}" if floor else "", floor or ""]
        for name, floor in pairings.items()
    ]  # fmt: skip
    common.table(["part", "ms: median (p10 - p90)", "ratio within a round", "to"], rows)
    rate, moved = 2e-6 * best**3 / medians[best], parameters * BYTES_PER_PARAMETER
    copy_rate = 1e-6 * moved / common.spread(times["copy"]).median
    print(f"{pairs} pairs, {parameters:,} parameters: {flops / 1e9:.3f} GFLOP at {rate:.0f} "
          f"GFLOP/s (sgemm {best}), {moved / 1e6:.1f} MB at {copy_rate:.1f} GB/s\n")  # fmt: skip
    over = common.ratio(times, "step", "floor")
    numbers = {
        "ms": {name: common.spread(values) for name, values in times.items()},
        "over_floor": over, "flops": flops, "bytes": moved, "pairs": pairs, "square": best,
        "gflops_per_s": rate, "copy_gb_per_s": copy_rate,
    }  # fmt: skip
    common.report("step", numbers, [common.target("step over its floor", over.median, 1.8, "x")])


if __name__ == "__main__":
    main()
