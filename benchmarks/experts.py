"""How a step grows with the number of experts and with k, and which way of computing is faster.

    python benchmarks/experts.py [--rounds N] [--clock wall|cpu]

The paper's MovieLens-1M shape, forward + backward. Two tables, the rivals of each in turn, after an
untimed call of the same:
1. E = 16, 64, 256 experts, moesart, k=2;
2. k = 1 ... 16 of 16 experts, topk: only the chosen pairs, all pairs, and the way that
   `dispatch=auto` takes. `moe.DENSE_FROM` should be the share of all pairs from which
   sparse / dense is above 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import common
from shape import BATCH, Step, build_model

from recsys_moe.model import moe
from recsys_moe.routers.topk import TopKRouter
from recsys_moe.train.processes.memory import training_process

WAYS = ("sparse", "dense", "auto")


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=40)
    parser.add_argument("--experts", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--k", type=int, nargs="+", default=[1, 2, 4, 6, 8, 9, 10, 12, 14, 16])
    parser.add_argument("--most", type=int, default=16, help="experts in the table over k")
    options = common.parse(parser, argv)
    with training_process():
        over_experts, over_k = by_experts(options), by_k(options)
    first, *others = options.experts
    targets = [
        common.target(f"forward + backward of E={e} over E={first}",
                      over_experts[e]["ratio"].median, 1.3, "x")
        for e in others
    ]  # fmt: skip
    worst = max(one["auto"].median for one in over_k.values())
    targets.append(common.target("auto over dense, worst k", worst, 1.05, "x"))
    common.report("experts", {"experts": over_experts, "k": over_k, "of": options.most}, targets)


def by_experts(options: Any) -> dict[int, dict[str, Any]]:
    steps = {f"{e}": Step(build_model(num_experts=e)) for e in options.experts}
    calls = {e: step.forward_backward for e, step in steps.items()}
    times = common.in_turn(calls, options.rounds, options.clock, settle=True)
    first = next(iter(steps))
    found = {
        int(e): {"pairs": step.pairs, "ms": common.spread(times[e]),
                 "ratio": common.ratio(times, e, first)}
        for e, step in steps.items()
    }  # fmt: skip
    columns = {"E": "{name}", "pairs": "{pairs}", "forward + backward, ms": "{ms:.1f}"}
    common.table({**columns, f"to E={first}": "{ratio:.2f}"}, common.named(found))
    return found


def by_k(options: Any) -> dict[int, dict[str, Any]]:
    steps = {(k, way): Step(_topk(k, options.most, way)) for k in options.k for way in WAYS}
    calls = {f"{k} {way}": step.forward_backward for (k, way), step in steps.items()}
    times = common.in_turn(calls, max(options.rounds // 2, 1), options.clock, settle=True)
    found = {
        k: {"share": steps[k, "sparse"].pairs / (BATCH * options.most),
            "ms": {way: common.spread(times[f"{k} {way}"]) for way in WAYS},
            "sparse": common.ratio(times, f"{k} sparse", f"{k} dense"),
            "auto": common.ratio(times, f"{k} auto", f"{k} dense")}
        for k in options.k
    }  # fmt: skip
    columns = {
        "k": "{name}", "pairs": "{share:.0%}",
        **{f"{way}, ms": f"{{ms[{way}]:.1f}}" for way in WAYS},
        "sparse / dense": "{sparse:.2f}", "auto / dense": "{auto:.2f}",
    }  # fmt: skip
    common.table(columns, common.named(found))
    print(f"moe.DENSE_FROM is {moe.DENSE_FROM}\n")
    return found


def _topk(k: int, experts: int, way: str) -> Any:
    return build_model(num_experts=experts, router=TopKRouter.Config(k=k), dispatch=way)


if __name__ == "__main__":
    main()
