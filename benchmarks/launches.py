"""Operations of a training step, by dispatch: how many kernels a GPU would have to start.

    python benchmarks/launches.py

The paper's model at batch 2048 with 16 and 64 experts, on a CPU. Counted are the calls that torch
dispatches below autograd and that compute something: views are free. A few start more than one
kernel on a GPU, such as a sort, and a CPU takes some that a GPU does not; so it is an estimate.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import common
from shape import Step, build_model
from torch.utils._python_dispatch import TorchDispatchMode

from recsys_moe.model.moe import Dispatch

PARTS = ("forward", "backward", "optimize")
FREE = (
    *("view", "expand", "unsqueeze", "squeeze", "transpose", "t.default", "detach", "alias"),
    *("select.", "slice.", "unbind", "permute", "split", "empty", "as_strided", "lift_fresh"),
    "_record_function",
)
"""Views, memory, and marks of the profiler."""


class Calls(TorchDispatchMode):
    """Counts the operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).partition(".")[2]
        if not name.startswith(FREE) and not any(free in name for free in FREE if "_" in free):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--experts", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--names", action="store_true", help="list the operations")
    options = parser.parse_args(argv)
    ways = [way for way in get_args(Dispatch) if way != "auto"]
    found = [
        {"experts": experts, "way": way, **counted(way, experts, options)}
        for experts, way in itertools.product(options.experts, ways)
    ]
    columns = {"experts": "{experts}", "dispatch": "{way}", **{p: f"{{{p}}}" for p in PARTS}}
    common.table({**columns, "step": "{step}"}, found)
    common.report("launches", {"batch_size": options.batch_size, "results": found})


def counted(way: str, experts: int, options: Any) -> dict[str, int]:
    """Operations of each part of a step."""
    step = Step(build_model(dispatch=way, num_experts=experts), options.batch_size)
    step.whole()
    found = {}
    for part in PARTS:
        with Calls() as calls:
            getattr(step, part)()
        found[part] = calls.counts.total()
        if options.names:
            print(way, part, dict(calls.counts.most_common()))
    return {**found, "step": sum(found.values())}


if __name__ == "__main__":
    main()
