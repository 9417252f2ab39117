"""Where a training step goes, part by part: `python benchmarks/step.py --parts`.

A step cut at its seams: what a part gets from the one before is detached, and its gradient is
handed back by hand. So each part has a forward and a backward time of its own, in the order and
with the caches of a whole step. What happens inside `sparse_experts` is told apart by clocks around
its functions. A step that is not cut runs in turn with it and says what cutting costs.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import common
import torch
from shape import BATCH, BATCHES, random_columns, schema
from torch import Tensor

from recsys_moe.config.settings import parse_config
from recsys_moe.model import dispatch
from recsys_moe.model.experts import Dropout
from recsys_moe.model.network import Output
from recsys_moe.model.tasks import step_counts
from recsys_moe.seeds import stream_seed
from recsys_moe.train.module import RecModule

INSIDE = {
    (dispatch, "plan_pairs"): ("plan", 0),
    (Dropout, "mask"): ("dropout mask", 0),
    (dispatch, "_linear"): ("experts' matmuls", 0),
    (dispatch, "_linear_backward"): ("experts' matmuls", 1),
}
"""Functions inside `sparse_experts`, the part they are and whether they belong to the backward."""
REST = "gather, ReLU, mix"
PARTS = ("bookkeeping", "embeddings", "routers", "plan", "dropout mask", "experts' matmuls", REST,
         "towers", "loss", "optimizer")  # fmt: skip


class CutStep:
    """Two equal modules: one whole step and one cut step at a time."""

    def __init__(self, num_experts: int, now: Callable[[], float]) -> None:
        self.now = now
        self.times: dict[str, list[float]] = defaultdict(list)
        config = parse_config({"model": {"num_experts": num_experts}})
        self.module = RecModule(config.model_dump(mode="json"), schema().to_json())
        self.module._steps_per_epoch = BATCHES
        self.optimizer: Any = self.module.train()._optimizer()
        columns = random_columns(BATCHES * BATCH)
        rows = [slice(i * BATCH, (i + 1) * BATCH) for i in range(BATCHES)]
        self.batches = itertools.cycle([columns.take(part) for part in rows])

    def whole(self) -> None:
        loss = self.module.training_step(next(self.batches), 1)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    @contextmanager
    def timed(self, part: str, inside: bool = False) -> Iterator[None]:
        """Add to the time of a part, without that of functions inside it."""
        before, start = self.spent_inside, self.now()
        yield
        took = 1e3 * (self.now() - start)
        self.spent[part] += took - (0 if inside else self.spent_inside - before)
        self.spent_inside += took if inside else 0

    def cut(self) -> None:
        """One step; appends to `times` what each part took."""
        self.spent: dict[str, float] = defaultdict(float)
        self.spent_inside = 0.0
        with ExitStack() as stack:
            for (owner, name), (part, backward) in INSIDE.items():
                clocked = self._clocked(getattr(owner, name), _name(part, backward))
                stack.enter_context(patch.object(owner, name, clocked))
            self._forward_and_backward(next(self.batches))
        with self.timed("optimizer"):
            self.optimizer.step()
        for part, backward in itertools.product(PARTS, range(2)):
            name = _name(part, backward)
            self.times[name].append(self.spent[name])

    def _clocked(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def clocked(*args: Any) -> Any:
            with self.timed(name, inside=True):
                return function(*args)

        return clocked

    def _forward_and_backward(self, batch: Any) -> None:
        module, model = self.module, self.module.model
        with self.timed("bookkeeping"):
            model.reseed(stream_seed(0, "step", 0, 0))
            module._catch_up(batch)
            counts = step_counts(batch.labels)
        with self.timed("embeddings"):
            x_BD = model.encode(batch.user, batch.item)
        x_routers, x_experts = _seam(x_BD), _seam(x_BD)
        with self.timed("routers"):
            weights_BTE, selected_BTE, routings = model.moe._route(x_routers, batch.user)
        weights, experts = _seam(weights_BTE), model.moe.experts
        with self.timed(REST):
            mixed_BTH = dispatch.sparse_experts(x_experts, weights, selected_BTE, experts)
        mixed = _seam(mixed_BTH)
        with self.timed("towers"):
            pairs = zip(model.towers, mixed.unbind(1), strict=True)
            logits_BT = torch.cat([tower(mixed_BH) for tower, mixed_BH in pairs], -1)
        logits = _seam(logits_BT)
        with self.timed("loss"):
            loss, penalties = module.losses(Output(logits, routings), batch.labels, counts)
        with self.timed("bookkeeping"):
            output = Output(logits, routings)
            module._add_to_epoch(loss.detach() * counts.rows, output, len(batch.user))
            self.optimizer.zero_grad()
        self.pairs = int(selected_BTE.any(1).sum())
        for part, out, grad in (
            ("loss", loss + penalties, None), ("towers", logits_BT, logits),
            (REST, mixed_BTH, mixed), ("routers", weights_BTE, weights),
        ):  # fmt: skip
            with self.timed(_name(part, 1)):
                out.backward(None if grad is None else grad.grad)
        with self.timed(_name("embeddings", 1)):
            torch.autograd.backward([x_BD, x_BD], [x_routers.grad, x_experts.grad])


def _name(part: str, backward: int) -> str:
    return f"{part}, backward" if backward else part


def _seam(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


def floors(module: RecModule, pairs: int) -> dict[str, tuple[float, float]]:
    """FLOPs and bytes that each part cannot do without, forward and backward together.

    Bytes: every array of a part read once and written once; of matmuls their weights alone, and
    those count where they take longer than the FLOPs. Parts of small operations have no floor.
    """
    model, (num_experts, width, hidden) = module.model, module.model.moe.experts.kernel_EDH.shape
    tasks, tables = len(model.towers), module._tables()
    towers = sum(p.numel() for p in model.towers.parameters() if p.ndim == 2)
    mixed, gathered, outputs = tasks * BATCH * hidden, pairs * width, pairs * hidden
    return {
        # x written, its gradient read, a dense gradient of the tables written
        "embeddings": (0, 4 * (3 * BATCH * width + sum(t.weight.numel() for t in tables))),
        "routers": (6 * tasks * BATCH * width * num_experts, 12 * tasks * width * num_experts),
        "dropout mask": (0, 4 * outputs),
        "experts' matmuls": (6 * pairs * width * hidden, 12 * num_experts * width * hidden),
        # x and its rows per pair, pairs' outputs and mixtures; then the gradient of each
        REST: (0, 4 * (2 * BATCH * width + 2 * gathered + 3 * outputs + 2 * mixed)),
        "towers": (6 * BATCH * towers, 12 * towers),
        "optimizer": (0, 28 * sum(p.numel() for p in module.parameters())),
    }


def main(options: Any, squares: dict[str, common.Call], copy: common.Call, copied: int) -> None:
    """`squares`: matmuls by their size; `copy` moves `copied` bytes, read and written together."""
    step = CutStep(options.experts, common.CLOCKS[options.clock])
    calls = {"whole": step.whole, "cut": step.cut, "copy": copy, **squares}
    times = common.in_turn(calls, options.rounds, options.clock)
    parts = {name: values[-options.rounds :] for name, values in step.times.items()}
    rate = max(2 * int(n) ** 3 / common.spread(times[n]).median for n in squares)  # FLOPs per ms
    bytes_rate = copied / common.spread(times["copy"]).median
    least = {
        part: max(flops / rate, size / bytes_rate)
        for part, (flops, size) in floors(step.module, step.pairs).items()
    }
    show(times, parts, least, step.pairs)


def show(times: common.Times, parts: common.Times, least: dict[str, float], pairs: int) -> None:
    both = {part: common.total(parts, part, _name(part, 1)) for part in PARTS}
    both["sum"] = common.total(both, *PARTS)
    whole = common.spread(times["whole"]).median
    rows, found = [], {}
    for part in PARTS:
        forward, backward, ms = (
            common.spread(v) for v in (parts[part], parts[_name(part, 1)], both[part])
        )
        floor = least.get(part, 0.0)
        rows.append([part, f"{forward.median:.2f}", f"{backward.median:.2f}" if any(backward) else
                     "", f"{ms:.2f}", f"{floor:.2f}", f"{ms.median - floor:.2f}",
                     f"{ms.median / whole:.0%}"])  # fmt: skip
        found[part] = {"forward": forward, "backward": backward, "both": ms, "floor": floor}
    total, floor = common.spread(both["sum"]), sum(least.values())
    rows.append(["sum of the parts", "", "", f"{total:.2f}", f"{floor:.2f}",
                 f"{total.median - floor:.2f}", f"{total.median / whole:.0%}"])  # fmt: skip
    rows.append(["the step, not cut", "", "", f"{common.spread(times['whole']):.2f}", "", "", ""])
    common.table(["part", "forward, ms", "backward, ms", "both: median (p10 - p90)", "floor, ms",
                  "above it, ms", "of the step"], rows)  # fmt: skip
    common.report("parts", {"parts": found, "whole": common.spread(times["whole"]), "pairs": pairs})
