"""Training steps on a GPU: examples/s, kernels per step, compiled, replayed as a CUDA graph.

    python benchmarks/gpu.py [--rounds N]

The paper's model at batch 512, 8192 and 65,536, in float32 and under bfloat16 autocast. In turn:
sparse dispatch and dense dispatch as they come, dense dispatch compiled, and dense dispatch
replayed as a CUDA graph (the sparse one looks at the routing on the host, which a graph cannot). A
way that this torch or device cannot take is reported with its reason. Last, how far its logits are
from the processor's. Without a CUDA device it says so and ends.
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

WAYS = ("sparse", "dense", "dense, compiled", "dense, CUDA graph")
BATCHES = (512, 8192, 65_536)
SIDE_STEPS = 3
"""Steps on a side stream before a capture, as torch.cuda.graph asks for."""


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
    columns |= {"examples/s": "{rate}", "kernels per step": "{started}"}
    common.table(columns, [
        {**row, "rate": row.get("failed") or f"{row['examples_per_s']:,.0f}",
         "started": row.get("kernels") or ""}
        for row in found
    ])  # fmt: skip
    apart = parity(options.device)
    print(f"\nLogits of the processor and of {options.device} differ by {apart:.1e} at most.")
    name = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    common.report("gpu", {"device": name, "parity": apart, "results": found})


@torch.no_grad()
def parity(device: str) -> float:
    """The largest difference of a logit of random rows between the processor and `device`, in
    float32 and with what evaluation chooses."""
    model, rows = build_model().eval(), random_columns(BATCH)
    here = model(rows.user, rows.item).logits_BT
    there = model.to(device)(rows.user.to(device), rows.item.to(device)).logits_BT
    return float((here - there.cpu()).abs().max())


def compare(options: Any, batch_size: int, precision: str) -> list[dict[str, Any]]:
    """All ways at one batch size and precision; those that fail carry their reason."""
    bf16 = partial(torch.autocast, options.device, dtype=torch.bfloat16)
    cast: Any = bf16 if precision == "bf16" else nullcontext
    calls: dict[str, common.Call] = {}
    found: dict[str, dict[str, Any]] = {}
    for way in options.ways:
        try:
            step = Step(build_model(dispatch=way.split(",")[0]), batch_size, options.device, cast)
            calls[way] = prepare(step, way)
        except Exception as error:  # what fails here is the finding
            reason = str(error).strip().partition("\n")[0][:100]
            found[way] = {"failed": f"{type(error).__name__}: {reason}"}
    times = common.in_turn(calls, options.rounds, options.clock)
    for way, call in calls.items():
        rates = common.spread([1e3 * batch_size / ms for ms in times[way]])
        found[way] = {"examples_per_s": rates, "kernels": kernels(call)}
    shared = {"batch_size": batch_size, "precision": precision}
    return [{**shared, "way": way, **found[way]} for way in options.ways]


def prepare(step: Step, way: str) -> common.Call:
    """The step as it is run, after a first run that pays for compiling or capturing."""
    if way.endswith("compiled"):
        step.model.compile()
    call = captured(step) if way.endswith("CUDA graph") else step.whole
    call()
    common.synchronise()
    return call


def captured(step: Step) -> common.Call:
    """One whole step as a graph on one batch; replays draw new numbers from its generators."""
    step.batches = iter([next(step.batches)] * (SIDE_STEPS + 1))
    for group in step.optimizer.param_groups:
        group["capturable"] = True
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(SIDE_STEPS):
            step.whole()
    torch.cuda.current_stream().wait_stream(stream)
    graph, device = torch.cuda.CUDAGraph(), torch.device("cuda")
    for stream_ in (step.model.moe.experts.dropout.stream, *(r.stream for r in step.model.routers)):
        graph.register_generator_state(stream_.generator(device))
    step.optimizer.zero_grad()
    with torch.cuda.graph(graph):
        step.forward()
        step.loss.backward()
        step.optimizer.step()
    return graph.replay


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
