"""What a step with CNN experts takes as k of 8 grows: only the chosen rows are computed.

    OMP_NUM_THREADS=1 python -m research.cnn_experts [--rounds N] [--rows 512] [--clock wall|cpu]

The network of examples/images for Multi-MNIST (two tasks, whose unions of experts count) and for
one task, on made-up images: forward, backward and Adam, each k in turn with the dense softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from benchmarks import common
from examples.common.runs import chosen_router
from examples.images.model import ImageMoE

EXPERTS, SHAPE, TARGET_K, TARGET = 8, (1, 36), 2, 0.5


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=7)
    parser.add_argument("--rows", type=int, default=512, help="of a batch")
    parser.add_argument("--k", type=int, nargs="+", default=[2, 4, 6])
    options = common.parse(parser, argv)
    found = {f"{tasks} tasks": over_k(tasks, options) for tasks in (2, 1)}
    targets = [
        common.target(f"k={TARGET_K} over dense, {name}", k["ratio"].median, TARGET, "x")
        for name, rows in found.items()
        if (k := rows.get(str(TARGET_K)))
    ]
    common.report("cnn_experts", {"over_k": found}, targets)


def over_k(tasks: int, options: Any) -> dict[str, dict[str, Any]]:
    steps = {"dense": Step("softmax", EXPERTS, tasks, options.rows)}
    steps |= {str(k): Step("moesart", k, tasks, options.rows) for k in options.k}
    times = common.in_turn(steps, options.rounds, options.clock, warm_up=1)
    found = {
        name: {"experts": step.experts, "ms": common.spread(times[name]),
               "ratio": common.ratio(times, name, "dense")}
        for name, step in steps.items()
    }  # fmt: skip
    columns = {f"k of {EXPERTS}, {tasks} task(s)": "{name}", "experts per row": "{experts:.2f}"}
    columns |= {"step, ms": "{ms:.0f}", "to dense": "{ratio:.2f}"}
    common.table(columns, common.named(found))
    return found


class Step:
    """A training step of one router, as it begins to learn."""

    def __init__(self, name: str, k: int, tasks: int, rows: int) -> None:
        torch.manual_seed(0)
        self.model = ImageMoE(SHAPE, tasks, EXPERTS, chosen_router(name, k, {})).train()
        self.model.layer.reseed(0)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-5, fused=True)
        self.image = torch.rand(rows, SHAPE[0], SHAPE[1], SHAPE[1])
        self.labels_BT = torch.randint(10, (rows, tasks))
        self.experts = 0.0

    def __call__(self) -> None:
        logits_BTC, routings = self.model(self.image)
        functional.cross_entropy(logits_BTC.transpose(1, 2), self.labels_BT).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        chosen_BE = torch.stack([routing.selected_BE for routing in routings]).any(0)
        self.experts = float(chosen_BE.float().sum(1).mean())


if __name__ == "__main__":
    main()
