"""How a step grows with the number of experts and with k, and which way of computing is faster.

    python benchmarks/experts.py [--rounds N] [--clock wall|cpu]

The paper's MovieLens-1M shape. Three tables, the rivals of each in turn, after an untimed call
of the same:
1. forward + backward with E = 16, 64, 256 experts, moesart, k=2 (the optimizer runs, timed apart),
   beside a copy of as many bytes as the expert kernels move: read twice, their gradient written;
2. forward + backward with k = 1 ... 16 of 16 experts, topk: only the chosen pairs, all pairs, and
   the way that `dispatch=auto` takes. Says where `moe.DENSE_FROM` should be;
3. the grouped matmuls of `recsys_moe.model.dispatch`, forward + backward: cut into the blocks that
   `dispatch.plan_blocks` chooses, as one padded block, and without any padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import common
import torch
from shape import BATCH, TASKS, Step, build_model
from step import copy

from recsys_moe.model import dispatch, moe
from recsys_moe.routers.topk import TopKRouter
from recsys_moe.train.processes.memory import training_process

WAYS = ("sparse", "dense", "auto")
CUTS = {
    "planned": (dispatch.CPU_BLOCK, dispatch.WORTH),
    "one block": (10**9, 1.0),
    "without": (0, 0.0),
}
"""`dispatch.CPU_BLOCK` and `dispatch.WORTH` of each way to cut."""
LOADS = {"equal": 0.0, "unequal": 0.5}
"""Standard deviation of the logarithm of an expert's chance."""
DIM = 256
BYTES_PER_WEIGHT = 12
"""Of an expert kernel in float32: forward and backward read it, backward writes its gradient."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=40)
    parser.add_argument("--experts", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--k", type=int, nargs="+", default=[1, 2, 4, 6, 8, 9, 10, 12, 14, 16])
    parser.add_argument("--most", type=int, default=16, help="experts in the table over k")
    options = common.parse(parser, argv)
    with training_process():
        over_experts, targets = by_experts(options)
        over_k, crossing = by_k(options)
        matmuls = by_way_of_matmul(options)
    targets += [common.target("auto over dense, worst k", over_k["worst"], 1.05, "x")]
    numbers = {"experts": over_experts, "k": over_k, "dense_from": crossing, "matmuls": matmuls}
    common.report("experts", numbers, targets)


def by_experts(options: Any) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
    steps = {e: Step(build_model(num_experts=e)) for e in options.experts}
    calls: dict[str, common.Call] = {}
    for e, step in steps.items():
        kernels = copy(BYTES_PER_WEIGHT * step.model.moe.experts.kernel_EDH.numel())
        calls |= {f"{e}": step.forward_backward, f"{e} optimizer": step.optimize,
                  f"{e} copy": kernels}  # fmt: skip
    times = common.in_turn(calls, options.rounds, options.clock, settle=True)
    first, rows = f"{options.experts[0]}", []
    found: dict[int, dict[str, Any]] = {}
    for e, step in steps.items():
        names = (f"{e}", f"{e} optimizer", f"{e} copy")
        ms, optimizer, kernels_ms = (common.spread(times[name]) for name in names)
        ratio = common.ratio(times, f"{e}", first)
        rows.append([f"{e}", f"{step.pairs}", f"{ms:.1f}", f"{ratio:.2f}", f"{kernels_ms:.1f}",
                     f"{optimizer:.1f}"])  # fmt: skip
        found[e] = {"pairs": step.pairs, "ms": ms, "ratio": ratio, "kernel_copy_ms": kernels_ms,
                    "optimizer_ms": optimizer}  # fmt: skip
    head = ["E", "pairs", "forward + backward, ms", f"to E={first}", "kernels' bytes copied, ms",
            "optimizer, ms"]  # fmt: skip
    common.table(head, rows)
    targets = [
        common.target(
            f"forward + backward of E={e} over E={first}", found[e]["ratio"].median, 1.3, "x"
        )
        for e in options.experts[1:]
    ]
    return found, targets


def by_k(options: Any) -> tuple[dict[str, Any], float | None]:
    """The targets' numbers, and the share of evaluated pairs where dense becomes faster."""
    steps = {
        (k, way): Step(_topk(k, options.most, way)) for k in options.k for way in WAYS
    }  # fmt: skip
    calls = {f"{k} {way}": step.forward_backward for (k, way), step in steps.items()}
    times = common.in_turn(calls, max(options.rounds // 2, 1), options.clock, settle=True)
    rows, found, shares, ratios, worst = [], {}, [], [], 0.0
    for k in options.k:
        share = steps[k, "sparse"].pairs / (BATCH * options.most)
        ms = [common.spread(times[f"{k} {way}"]) for way in WAYS]
        sparse, auto = (
            common.ratio(times, f"{k} {way}", f"{k} dense") for way in ("sparse", "auto")
        )
        rows.append([f"{k}", f"{share:.0%}", *(f"{m:.1f}" for m in ms), f"{sparse:.2f}",
                     f"{auto:.2f}"])  # fmt: skip
        found[k] = {"share": share, "ms": dict(zip(WAYS, ms, strict=True)), "sparse": sparse,
                    "auto": auto}  # fmt: skip
        shares.append(share)
        ratios.append(sparse.median)
        worst = max(worst, auto.median)
    common.table(
        ["k", "pairs", *(f"{way}, ms" for way in WAYS), "sparse / dense", "auto / dense"], rows
    )
    crossing = _crossing(shares, ratios)
    said = "at no measured share" if crossing is None else f"from {crossing:.2f} of all pairs"
    print(f"dense is faster {said}; moe.DENSE_FROM is {moe.DENSE_FROM}\n")
    return {"worst": worst, "of": options.most, "by_k": found}, crossing


def _topk(k: int, experts: int, way: str) -> Any:
    return build_model(num_experts=experts, router=TopKRouter.Config(k=k), dispatch=way)


def _crossing(shares: list[float], ratios: list[float]) -> float | None:
    """The share at which sparse / dense passes 1 for good, by linear interpolation."""
    slower = [ratio >= 1 for ratio in ratios]
    if not slower[-1]:
        return None
    last = max((i for i, slow in enumerate(slower) if not slow), default=None)
    if last is None:
        return shares[0]
    part = (1 - ratios[last]) / (ratios[last + 1] - ratios[last])
    return shares[last] + part * (shares[last + 1] - shares[last])


def by_way_of_matmul(options: Any) -> list[dict[str, Any]]:
    """Equal loads, as fresh routers have, and unequal ones, as trained routers do."""
    rows, found = [], []
    for experts, loads in itertools.product(options.experts, LOADS):
        selected_BTE, plans = _random_pairs(experts, LOADS[loads]), {}
        for cut, (per_block, worth) in CUTS.items():
            with patch.multiple(dispatch, CPU_BLOCK=per_block, WORTH=worth):
                plans[cut] = dispatch.plan_pairs(selected_BTE)
        calls = {cut: _grouped(plan, experts) for cut, plan in plans.items()}
        times = common.in_turn(calls, options.rounds, options.clock, settle=True)
        ms = {cut: common.spread(times[cut]) for cut in CUTS}
        over = {cut: common.ratio(times, "planned", cut) for cut in ("one block", "without")}
        real = len(plans["planned"].real_R)
        padding = {cut: len(plan.row_P) / real for cut, plan in plans.items()}
        blocks = len(plans["planned"].blocks)
        rows.append([f"{experts}", loads, f"{blocks}", *(f"{padding[cut]:.2f}" for cut in CUTS),
                     *(f"{ms[cut]:.1f}" for cut in CUTS),
                     *(f"{ratio:.2f}" for ratio in over.values())])  # fmt: skip
        found.append({"experts": experts, "loads": loads, "pairs": real, "blocks": blocks,
                      "padding": padding, "ms": ms, "planned_over": over})  # fmt: skip
    head = ["E", "loads", "blocks", *(f"padding, {cut}" for cut in CUTS),
            *(f"{cut}, ms" for cut in CUTS), *(f"planned / {cut}" for cut in over)]  # fmt: skip
    common.table(head, rows)
    return found


def _random_pairs(experts: int, spread: float) -> torch.Tensor:
    """bool (B, T, E): two experts per example and task, drawn by log-normal chances."""
    chances_BTE = (spread * torch.randn(experts)).exp().expand(BATCH * TASKS, -1)
    index_BTK = chances_BTE.multinomial(2).view(BATCH, TASKS, 2)
    return torch.zeros(BATCH, TASKS, experts, dtype=torch.bool).scatter_(-1, index_BTK, True)


def _grouped(plan: dispatch.PairPlan, experts: int) -> common.Call:
    """The private halves of dispatch: what is timed is exactly what a step runs."""
    kernel_EDH, bias_EH = torch.randn(experts, DIM, DIM), torch.zeros(experts, DIM)
    x_PD, grad_PH = (torch.randn(len(plan.row_P), DIM) for _ in range(2))

    def run() -> None:
        dispatch._linear(x_PD, kernel_EDH, bias_EH, plan.blocks)
        dispatch._linear_backward(grad_PH, x_PD, kernel_EDH, plan.blocks)

    return run


if __name__ == "__main__":
    main()
