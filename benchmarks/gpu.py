"""Training steps on a GPU: examples/s and kernels per step, by either dispatch.

    python benchmarks/gpu.py [--rounds N]

The paper's model at batch 512, 2048, 8192 and 65,536, in float32 and under bfloat16 autocast. Each
dispatch in turn, as it is and, where it can be recorded, with forward and backward pass replayed as
a CUDA graph. Last, how far its logits are from the processor's. Without a CUDA device it says so
and ends.
"""

from __future__ import annotations

import itertools
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import common
import torch
from shape import BATCH, Step, build_model, random_columns
from torch.profiler import ProfilerActivity, profile

from recsys_moe.model.request import Request

WAYS = ("sparse", "static", "dense", "static replayed", "dense replayed")
BATCHES = (512, 2048, 8192, 65_536)


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=50)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda",
                        help="cpu only tests this script")  # fmt: skip
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--batch-size", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--precision", nargs="+", choices=["fp32", "bf16"],
                        default=["fp32", "bf16"])  # fmt: skip
    parser.add_argument("--top", type=int, default=0, help="kernels to list of each step")
    options = common.parse(parser, argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        common.skip("gpu", f"torch {torch.__version__} sees no CUDA device")
        return
    shapes = itertools.product(options.precision, options.batch_size)
    found = [row for shape in shapes for row in compare(options, *shape)]
    columns = {"batch": "{batch_size}", "precision": "{precision}", "way": "{way}"}
    columns |= {"examples/s": "{examples_per_s:,.0f}", "kernels per step": "{kernels}"}
    common.table({**columns, "ms of kernels": "{kernel_ms}"}, found)
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


def compare(options: Any, precision: str, batch_size: int) -> list[dict[str, Any]]:
    """All ways at one batch size and precision; one that fails is told and left out."""
    bf16 = partial(torch.autocast, options.device, dtype=torch.bfloat16)
    cast: Any = bf16 if precision == "bf16" else nullcontext
    calls: dict[str, common.Call] = {}
    for way in options.ways:
        try:
            calls[way] = made(way, batch_size, options.device, cast)
        except RuntimeError:
            print(f"{way} at {batch_size} {precision} failed:\n{traceback.format_exc()}")
    times = common.in_turn(calls, options.rounds, options.clock)
    rows = []
    for way, call in calls.items():
        shape: dict[str, Any] = {"batch_size": batch_size, "precision": precision, "way": way}
        shape |= kernels(call, " ".join(map(str, shape.values())), options.top)
        speed = common.spread([1e3 * batch_size / ms for ms in times[way]])
        rows.append({**shape, "examples_per_s": speed})
    return rows


def made(way: str, batch_size: int, device: str, cast: Any) -> common.Call:
    """A whole training step."""
    dispatch, _, replayed = way.partition(" ")
    step = Step(build_model(dispatch=dispatch), batch_size, device, cast)
    if replayed:
        for _ in range(3):
            step.whole()
        common.synchronise()
        step.record()
    return step.whole


def kernels(call: common.Call, name: str, top: int) -> dict[str, Any]:
    """Kernels that one step starts on the GPU, and their time; None without a GPU."""
    if not torch.cuda.is_available():
        return {"kernels": None, "kernel_ms": None}
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        call()
        common.synchronise()
    events = [event for event in recorded.events() if event.device_type.name == "CUDA"]
    times: Counter[str] = Counter()
    for event in events:
        times[event.name] += event.device_time
    if top:
        counts = Counter(event.name for event in events)
        print(f"\n{name}: {len(events)} kernels, {sum(times.values()):.0f} us")
        for kernel, us in times.most_common(top):
            print(f"  {us:7.1f} us {counts[kernel]:3d} x {kernel[:110]}")
    return {"kernels": len(events), "kernel_ms": round(sum(times.values()) / 1e3, 3)}


if __name__ == "__main__":
    main()
