"""Bias of MOESART's adjustment strategies by exact enumeration (Fig. S1, eq. S13).

The figure of the paper holds for draws with replacement, where strategy (iii) is unbiased and
eq. (3) lies below (i) and (ii). Without replacement, as the router trains, the draws follow a
sequential law: (i) and (ii) coincide, (iii) is biased, and eq. (3) is worse than (i) for a router
that is confident enough. Axes: E experts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from recsys_moe.routers.moesart import Strategy, sampled_weights

STRATEGIES: tuple[Strategy, ...] = ("i", "ii", "iii", "3")
SHAPES = ("uniform", "random", "linear", "1/i", "2^-i", "3^-i", "0.9 on one")
RANDOM_SEED = 0
"""Of the `random` shape, the same for every n up to its length."""


@dataclass(frozen=True)
class Bias:
    """|E[w] - g|_2 for one shape of g, one strategy and one way to draw."""

    shape: str
    experts: int
    k: int
    replacement: bool
    strategy: str
    bias: float


def study(experts: int, k: int) -> list[Bias]:
    """Every shape, strategy and way to draw. Exact: nothing is sampled."""
    return [
        Bias(shape, experts, k, replacement, strategy, bias(g_E, k, strategy, replacement))
        for shape in SHAPES
        for g_E in [distribution(shape, experts)]
        for replacement in (True, False)
        for strategy in STRATEGIES
    ]


def distribution(shape: str, experts: int) -> Tensor:
    """Probabilities (E,) in float64, largest first but for `random`."""
    i = torch.arange(1, experts + 1, dtype=torch.float64)
    if shape == "random":
        generator = torch.Generator().manual_seed(RANDOM_SEED)
        values = torch.rand(experts, generator=generator, dtype=torch.float64)
    elif shape == "0.9 on one":
        values = torch.full_like(i, 0.1 / (experts - 1))
        values[0] = 0.9
    else:
        shapes = {"uniform": i**0, "linear": experts + 1 - i, "1/i": 1 / i}
        values = {**shapes, "2^-i": 0.5**i, "3^-i": 3.0**-i}[shape]
    return values / values.sum()


def bias(g_E: Tensor, k: int, strategy: Strategy, replacement: bool) -> float:
    """|E[w] - g|_2 over all draws of k experts and, for eq. (3), all choices of z."""
    return float((expected_weights(g_E, k, strategy, replacement) - g_E).norm())


def expected_weights(g_E: Tensor, k: int, strategy: Strategy, replacement: bool) -> Tensor:
    """E[w], (E,)."""
    counts, adjusted, probabilities = [], [], []
    for drawn, probability in draws(g_E, k, replacement):
        candidates = sorted(set(drawn)) if strategy == "3" else drawn[:1]
        for z in candidates:
            counts.append([drawn.count(i) for i in range(len(g_E))])
            adjusted.append(z)
            probabilities.append(probability / len(candidates))
    log_g_NE = g_E.log().expand(len(counts), -1)
    weights_NE = sampled_weights(
        log_g_NE, torch.tensor(counts), torch.tensor(adjusted), k=k, strategy=strategy
    )
    return torch.tensor(probabilities, dtype=g_E.dtype) @ weights_NE


def draws(g_E: Tensor, k: int, replacement: bool) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every multiset (set, without replacement) of k experts and its probability."""
    g = g_E.tolist()
    if replacement:
        for drawn in itertools.combinations_with_replacement(range(len(g)), k):
            yield drawn, _multinomial(g, drawn)
    else:
        for drawn in itertools.combinations(range(len(g)), k):
            yield drawn, sum(_sequential(g, order) for order in itertools.permutations(drawn))


def _multinomial(g: list[float], drawn: tuple[int, ...]) -> float:
    """k! prod_i g_i^r_i / r_i!"""
    counts = {i: drawn.count(i) for i in drawn}
    terms = (g[i] ** count / math.factorial(count) for i, count in counts.items())
    return math.factorial(len(drawn)) * math.prod(terms)


def _sequential(g: list[float], order: tuple[int, ...]) -> float:
    """g_a * g_b / (1 - g_a) * ...: each draw among the experts that are left."""
    left, probability = 1.0, 1.0
    for i in order:
        probability *= g[i] / left
        left -= g[i]
    return probability
