"""What splitting the first layers gains: the watch logits of a whole catalogue, per user.

    python benchmarks/ranking.py RUN [--rounds N] [--users N] [--clock wall|cpu]

In turn, for one user and once for many: the definition with every expert (naive_moe), our dense
batched matmul, the k-sparse forward without the split, and the split. All see the same users, and
the largest difference from the definition is printed. `--clock cpu` counts processor time, which a
busy machine disturbs less (use one thread).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import common
import torch
from torch import Tensor

from recsys_moe.inference.predictor import Predictor
from recsys_moe.model.moe import naive_moe
from recsys_moe.model.request import Request, of_users

TASK = 0
Rival = Callable[[Tensor], Tensor]


def main(argv: Sequence[str] | None = None) -> None:
    parser = common.parser(__doc__, rounds=20)
    parser.add_argument("run", help="run or model folder")
    parser.add_argument("--users", type=int, default=100, help="users in the call with many")
    options = common.parse(parser, argv)
    predictor = Predictor.load(options.run)
    results = {
        users: compare(predictor, users, rounds, options.clock)
        for users, rounds in ((1, options.rounds), (options.users, 1))
    }
    share = 1 / results[1]["naive"]["ratio"].median
    numbers = {"items": predictor.items.feature.size, "clock": options.clock, "users": results}
    target = common.target("split over naive, one user", share, 1 / 20, "x")
    common.report("ranking", numbers, [target])


def rivals(predictor: Predictor) -> dict[str, Rival]:
    """Users (U,) -> watch logits (U, N)."""
    model, item_N = predictor.artifact.model, torch.arange(predictor.items.feature.size)
    scorer = model.ranker(model.draws(0), len(item_N))

    def per_user(one: Rival) -> Rival:
        return torch.inference_mode()(lambda user_U: torch.stack([one(u) for u in user_U]))

    def naive(user: Tensor) -> Tensor:
        user_N = user.expand(len(item_N))
        x_ND = torch.cat([model.user_embedding(user_N), model.item_embedding(item_N)], -1)
        weights_NTE = torch.stack([r(x_ND, user_N).weights_BE for r in model.routers], 1)
        experts = model.moe.experts
        mixed_NTH = naive_moe(x_ND, weights_NTE, experts.kernel_EDH, experts.bias_EH)
        return [tower(mixed_NTH[:, t])[:, 0] for t, tower in enumerate(model.towers)][TASK]

    def whole(dispatch: str) -> Rival:
        def forward(user: Tensor) -> Tensor:
            model.moe.dispatch = dispatch
            return model(Request(user.expand(len(item_N)), item_N)).logits_BT[:, TASK]

        return forward

    return {
        "naive": per_user(naive),
        "dense": per_user(whole("dense")),
        "sparse": per_user(whole("sparse")),
        "split": lambda user_U: scorer.grid(of_users(user_U), item_N, TASK),
    }


def compare(predictor: Predictor, users: int, rounds: int, clock: str) -> dict[str, Any]:
    """Prints a table; milliseconds, ratios to the split and the largest error of the split."""
    sizes = (rounds + common.WARM_UP, users)
    generator = torch.Generator().manual_seed(0)
    user_RU = torch.randint(predictor.users.feature.size, sizes, generator=generator)
    logits: dict[str, list[Tensor]] = {}

    def call(name: str, rival: Rival) -> common.Call:
        mine = logits.setdefault(name, [])
        return lambda: mine.append(rival(user_RU[len(mine)]))

    calls = {name: call(name, rival) for name, rival in rivals(predictor).items()}
    times = common.in_turn(calls, rounds, clock)
    found: dict[str, Any] = {
        name: {"ms": common.spread(ms), "ratio": common.ratio(times, name, "split")}
        for name, ms in times.items()
    }
    columns = {f"{users} user(s)": "{name}", "ms: median (p10 - p90)": "{ms:.1f}"}
    columns["x split"] = "{ratio.median:.1f}"
    common.table(columns, common.named(found))
    pairs = zip(logits["split"], logits["naive"], strict=True)
    error = max(float((split - naive).abs().max()) for split, naive in pairs)
    print(f"largest error of the split: {error:.1e}\n")
    return {"error": error, **found}


if __name__ == "__main__":
    main()
