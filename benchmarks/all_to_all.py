"""What looking up rows of a divided table costs: all-to-all against its rivals, and the bandwidth.

    python benchmarks/all_to_all.py [--processes 2] [--rows 20000] [--batch-size 512 4096 32768]

Processes of this machine, gloo, one thread each. A step looks up a batch (uniform ids, width 128)
and sends gradients back, in three ways: `sharded` is recsys_moe.model.sharded; `rowwise` is torch's
RowwiseParallel on a DTensor with Shard(0) ids and values; `replicated` is a copy of the table in
each process and an all-reduce of its gradient. Sent bytes are counted by the formulas in
docs/large_embeddings.md, for `sharded` from the ids of the step. Bandwidth: of all-to-alls of so
many bytes per process, counting those that go to other processes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import common
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from recsys_moe.model.sharded import ShardedEmbedding, owned  # noqa: E402

DIM = 128
ROW = 4 * DIM
"""Bytes."""
MESSAGES = (2**16, 2**20, 2**24, 2**26)
"""Bytes that a process exchanges at once."""
WAYS = ("sharded", "rowwise", "replicated")


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rows", type=int, default=20_000, help="of the table")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[512, 4096, 32768],
                        help="rows of a step, of all processes together")  # fmt: skip
    parser.add_argument("--messages", type=int, nargs="+", default=MESSAGES)
    parser.add_argument("--seconds", type=float, default=300, help="limit, then processes end")
    options = common.parse(parser, argv)
    if "RANK" in os.environ:
        work(options)
        return
    found = start(options, list(sys.argv[1:] if argv is None else argv))
    show(found)
    facts = {"processes": options.processes, "rows": options.rows, "dim": DIM}
    common.report("all_to_all", {**facts, **found})


def start(options: Namespace, words: list[str]) -> dict[str, Any]:
    """What the first of the processes found. All are killed when one fails or time is up."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    world |= {"WORLD_SIZE": str(options.processes)}
    limit = ["timeout", "-s", "KILL", str(options.seconds)]
    workers = [
        subprocess.Popen(
            [*limit, sys.executable, __file__, *words],
            env={**os.environ, **world, "RANK": str(rank)},
            stdout=subprocess.PIPE,
        )
        for rank in range(options.processes)
    ]
    outputs = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        sys.exit("error: a process ended early, see above")
    return dict(json.loads(outputs[0]))


def work(options: Namespace) -> None:
    """One process; the first one prints."""
    dist.init_process_group("gloo")
    found = {
        "bandwidth": [bandwidth(size, options) for size in options.messages],
        "steps": [steps(batch, options) for batch in options.batch_size],
    }
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)  # tearing down while another process leaves may abort


def bandwidth(size: int, options: Namespace) -> dict[str, float]:
    """GB/s that a process sends to the others, and as much that it receives from them.

    `fastest`: of the fastest round, which other work on the machine disturbs least.
    """
    world = dist.get_world_size()
    values = torch.zeros(size // world * world, dtype=torch.uint8)
    result = torch.empty_like(values)
    call = {"all": lambda: dist.all_to_all_single(result, values)}
    times = common.in_turn(call, options.rounds)["all"]
    ms, fastest = common.spread(times).median, min(times)
    rate = len(values) * (world - 1) / world / 1e6
    return {"bytes": size, "ms": ms, "gb_per_second": rate / ms, "fastest": rate / fastest}


def steps(batch: int, options: Namespace) -> dict[str, Any]:
    """Milliseconds of a step in each way, and the megabytes that this process sends."""
    rank, world = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    index_B = torch.randint(0, options.rows, (batch // world,), generator=generator)
    calls = {way: step(way, options.rows, index_B) for way in WAYS}
    times = common.in_turn(calls, options.rounds, options.clock)
    ms = {way: common.spread(values) for way, values in times.items()}
    sent = sent_bytes(index_B, options.rows, rank, world)
    return {"batch": batch, "ms": ms, "sent_mb": {way: b / 1e6 for way, b in sent.items()}}


def step(way: str, rows: int, index_B: Tensor) -> Callable[[], object]:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    table: nn.Module = nn.Embedding(rows, DIM)
    if way == "sharded":
        table = ShardedEmbedding(rows, DIM, rank, world)
    elif way == "rowwise":
        plan = RowwiseParallel(input_layouts=Shard(0), output_layouts=Shard(0))
        table = parallelize_module(table, init_device_mesh("cpu", (world,)), plan)

    def run() -> None:
        table.zero_grad(set_to_none=True)
        table(index_B).sum().backward()
        if way == "replicated":
            dist.all_reduce(next(table.parameters()).grad)

    return run


def sent_bytes(index_B: Tensor, rows: int, rank: int, world: int) -> dict[str, float]:
    """To other processes in a step. The bytes of `sharded` are those of this process' ids, sent,
    and of as many rows, received forward and sent back as gradients."""
    own = owned(rows, rank, world)
    asked_U = index_B.unique()
    away = int(((asked_U < own.start) | (asked_U >= own.stop)).sum())
    others = (world - 1) / world
    return {
        "sharded": away * (8 + 2 * ROW),
        "rowwise": others * world * len(index_B) * (8 + 2 * ROW),
        "replicated": 2 * others * rows * ROW,
    }


def show(found: dict[str, Any]) -> None:
    common.table(
        ["exchanged per process", "ms", "GB/s out and in", "fastest round"],
        [[f"{b['bytes']:,} B", *(f"{b[key]:.2f}" for key in ("ms", "gb_per_second", "fastest"))]
         for b in found["bandwidth"]],
    )  # fmt: skip
    common.table(
        ["rows of a step", *(f"{way}, ms (MB sent)" for way in WAYS)],
        [[f"{s['batch']:,}", *(_cell(s, way) for way in WAYS)] for s in found["steps"]],
    )


def _cell(step: dict[str, Any], way: str) -> str:
    return f"{common.Spread(*step['ms'][way]):.1f} ({step['sent_mb'][way]:.2f})"


if __name__ == "__main__":
    main()
