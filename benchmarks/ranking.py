"""What splitting the first layers gains: the watch logits of a whole catalogue, per user.

    python benchmarks/ranking.py RUN [--repeats N] [--users N] [--clock wall|cpu]

Rivals take turns within one run: the definition with every expert (naive_moe), our dense batched
matmul, the k-sparse forward without the split, and the split. All see the same users, and the
largest difference from the definition is printed. Then a table for people and one JSON line.
`--clock cpu` counts processor time, which a busy machine disturbs less (use one thread).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import common
import torch
from torch import Tensor

from recsys_moe.inference.catalogue import CatalogueScorer
from recsys_moe.inference.pair_scores import Draws
from recsys_moe.inference.predictor import Predictor
from recsys_moe.model.moe import naive_moe

WARM_UP = 3
TASK = 0
Rival = Callable[[Tensor], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="Run or model folder.")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--users", type=int, default=100, help="Users in the call with many.")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    options = parser.parse_args()
    predictor = Predictor.load(options.run)
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    results = {}
    for users, repeats in ((1, options.repeats), (options.users, 1)):
        warm_up = WARM_UP if users == 1 else 1
        ways = {"repeats": repeats, "warm_up": warm_up, "clock": clock}
        times, error = timed(rivals(predictor), predictor, users, **ways)
        results[users] = report(times, users, error)
    share = 1 / results[1]["naive"]["ratio"]
    numbers = {"items": predictor.items.feature.size, "clock": options.clock, "users": results}
    target = common.target("split over naive, one user", share, 1 / 20, "x")
    common.report("ranking", numbers, [target])


def rivals(predictor: Predictor) -> dict[str, Rival]:
    """Users (U,) -> watch logits (U, N)."""
    model, item_N = predictor.artifact.model, torch.arange(predictor.items.feature.size)
    scorer = CatalogueScorer(model, len(item_N), draws=Draws(model, 0), whole_rows=len(item_N))

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
            return model(user.expand(len(item_N)), item_N).logits_BT[:, TASK]

        return forward

    return {
        "naive": per_user(naive),
        "dense": per_user(whole("dense")),
        "sparse": per_user(whole("sparse")),
        "split": lambda user_U: scorer.grid(user_U, item_N, TASK),
    }


def timed(
    fns: dict[str, Rival],
    predictor: Predictor,
    users: int,
    *,
    repeats: int,
    warm_up: int,
    clock: Callable[[], float],
) -> tuple[dict[str, list[float]], float]:
    """Milliseconds per rival and repeat, and the largest error of the split."""
    generator = torch.Generator().manual_seed(0)
    times: dict[str, list[float]] = {name: [] for name in fns}
    error = 0.0
    for repeat in range(warm_up + repeats):
        user_U = torch.randint(predictor.users.feature.size, (users,), generator=generator)
        logits = {}
        for name, rival in fns.items():
            start = clock()
            logits[name] = rival(user_U)
            if repeat >= warm_up:
                times[name].append(1e3 * (clock() - start))
        error = max(error, float((logits["split"] - logits["naive"]).abs().max()))
    return times, error


def report(times: dict[str, list[float]], users: int, error: float) -> dict[str, Any]:
    """Print the table of one number of users; the same as a mapping."""
    print(f"{users} user(s)    median ms      min      max   x split   (largest error {error:.1e})")
    summary: dict[str, Any] = {"error": error}
    for name, values in times.items():
        pairs = zip(values, times["split"], strict=True)
        ratio = statistics.median(value / split for value, split in pairs)
        median = statistics.median(values)
        print(f"{name:12} {median:10.1f} {min(values):8.1f} {max(values):8.1f} {ratio:9.1f}")
        summary[name] = {"median_ms": median, "min_ms": min(values), "ratio": ratio}
    return summary


if __name__ == "__main__":
    main()
