"""Training steps on a GPU: examples/s and kernels per step, by either dispatch.

    python benchmarks/gpu.py [--rounds N]

The paper's model at batch 512, 8192 and 65,536, in float32 and under bfloat16 autocast, sparse and
dense dispatch in turn. Last, how far its logits are from the processor's. Without a CUDA device it
says so and ends.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import common
import torch
from shape import BATCH, Step, build_model, random_columns
from torch.profiler import ProfilerActivity, profile

from recsys_moe.model.request import Request

WAYS = ("sparse", "dense")
BATCHES = (512, 8192, 65_536)


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=50)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda",
                        help="cpu only tests this script")  # fmt: skip
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--batch-size", type=int, nargs="+", default=BATCHES)
    options = common.parse(parser, argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        common.skip("gpu", f"torch {torch.__version__} sees no CUDA device")
        return
    shapes = itertools.product(options.batch_size, ("fp32", "bf16"))
    found = [row for shape in shapes for row in compare(options, *shape)]
    columns = {"batch": "{batch_size}", "precision": "{precision}", "way": "{way}"}
    columns |= {"examples/s": "{examples_per_s:,.0f}", "kernels per step": "{kernels}"}
    common.table(columns, found)
    apart = parity(options.device)
    print(f"\nLogits of the processor and of {options.device} differ by {apart:.1e} at most.")
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    common.report("gpu", {"device": name, "parity": apart, "results": found})


@torch.no_grad()
def parity(device: str) -> float:
    """The largest difference of a logit of random rows between the processor and `device`, in
    float32 and with what evaluation chooses."""
    model, rows = build_model().eval(), random_columns(BATCH)
    here = model(rows.request).logits_BT
    there = model.to(device)(Request(rows.user.to(device), rows.item.to(device))).logits_BT
    return float((here - there.cpu()).abs().max())


def compare(options: Any, batch_size: int, precision: str) -> list[dict[str, Any]]:
    """Both ways at one batch size and precision."""
    bf16 = partial(torch.autocast, options.device, dtype=torch.bfloat16)
    cast: Any = bf16 if precision == "bf16" else nullcontext
    calls: dict[str, common.Call] = {
        way: Step(build_model(dispatch=way), batch_size, options.device, cast).whole
        for way in options.ways
    }
    times = common.in_turn(calls, options.rounds, options.clock)
    shared = {"batch_size": batch_size, "precision": precision}
    return [
        {
            **{**shared, "way": way, "kernels": kernels(call)},
            "examples_per_s": common.spread([1e3 * batch_size / ms for ms in times[way]]),
        }
        for way, call in calls.items()
    ]


def kernels(call: common.Call) -> int | None:
    """Kernels that one step starts on the GPU; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        call()
        common.synchronise()
    return sum(event.device_type.name == "CUDA" for event in recorded.events())


if __name__ == "__main__":
    main()
