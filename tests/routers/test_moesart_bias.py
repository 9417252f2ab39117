"""MOESART's bias |E[w] - g|_2 and expected gradient by exact enumeration of all draws.

With replacement the estimate of strategy (iii) is unbiased; without, the sampling law is
sequential, and eq. (3) trades bias against the router's gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.routers.test_moesart import L, O, weigh


def draws(g: Tensor, k: int, replacement: bool) -> list[tuple[list[int], float]]:
    """Every count vector and its probability."""
    experts = range(len(g))
    if replacement:
        drawn = itertools.combinations_with_replacement(experts, k)
        vectors = [[chosen.count(i) for i in experts] for chosen in drawn]
        return [(r, multinomial(g, r)) for r in vectors]
    return [
        (
            [int(i in chosen) for i in experts],
            sum(map(sequential(g), itertools.permutations(chosen))),
        )
        for chosen in itertools.combinations(experts, k)
    ]


def multinomial(g: Tensor, r: list[int]) -> float:
    terms = (float(g[i]) ** count / math.factorial(count) for i, count in enumerate(r))
    return math.factorial(sum(r)) * math.prod(terms)


def sequential(g: Tensor) -> Callable[[tuple[int, ...]], float]:
    def probability(order: tuple[int, ...]) -> float:
        left, product = 1.0, 1.0
        for i in order:
            product *= float(g[i]) / left
            left -= float(g[i])
        return product

    return probability


def bias(g: Tensor, k: int, strategy: str, replacement: bool) -> float:
    expected = torch.zeros_like(g)
    for r, probability in draws(g, k, replacement):
        chosen = [i for i, count in enumerate(r) if count]
        adjusted = chosen if strategy == "3" else chosen[:1]
        for z in adjusted:
            expected += float(probability) / len(adjusted) * weigh(g.log(), r, k, strategy, z)
    return (expected - g).norm().item()


def shape(name: str, n: int) -> Tensor:
    i = torch.arange(1, n + 1, dtype=torch.float64)
    if name == "base":
        return O.softmax(-1)
    peak = torch.full((n,), 0.1 / (n - 1), dtype=torch.float64)
    peak[0] = 0.9
    shapes = {"uniform": i**0, "1/i": 1 / i, "2^-i": 0.5**i, "3^-i": 3.0**-i, "linear": n + 1 - i}
    values = shapes.get(name, peak)
    return values / values.sum()


@pytest.mark.parametrize(
    ("n", "k", "g", "with_replacement", "without"),
    [  # |E[w] - g|_2 of (i), (ii), (iii), (3) with replacement; of (i), (iii), (3) without
        (8, 2, "uniform", [0, 0, 0, 0], [0, 0, 0]),
        (8, 2, "1/i", [0.1395, 0.1395, 0, 0.0424], [0.1313, 0.0562, 0.0040]),
        (8, 2, "2^-i", [0.1447, 0.1447, 0, 0.0538], [0.1224, 0.1109, 0.0273]),
        (8, 2, "3^-i", [0.1575, 0.1575, 0, 0.0679], [0.0996, 0.2403, 0.0981]),
        (8, 2, "linear", [0.0660, 0.0660, 0, 0.0147], [0.0643, 0.0137, 0.0039]),
        (8, 2, "peak", [0.0932, 0.0932, 0, 0.0442], [0.0810, 0.4323, 0.1887]),
        (4, 2, "base", [0.153967, 0.153967, 0, 0.065337], [0.098820, 0.218711, 0.087931]),
        (4, 3, "base", [0.174180, 0.201060, 0, 0.094983], [0.045073, 0.368730, 0.264084]),
        (16, 2, "1/i", [0.1410, 0.1410, 0, 0.0353], [0.1377, 0.0366, 0.0075]),
        (16, 2, "2^-i", [0.1451, 0.1451, 0, 0.0538], [0.1233, 0.1099, 0.0266]),
        (16, 2, "peak", [0.0916, 0.0916, 0, 0.0434], [0.0861, 0.4180, 0.1790]),
        (8, 4, "2^-i", [0.1721, 0.2191, 0, 0.0837], [0.0671, 0.2876, 0.2238]),
    ],
)
def test_bias_by_exact_enumeration(
    n: int, k: int, g: str, with_replacement: list[float], without: list[float]
) -> None:
    probs = shape(g, n)
    found = [bias(probs, k, strategy, True) for strategy in ("i", "ii", "iii", "3")]
    assert found == pytest.approx(with_replacement, abs=6e-5)
    found = [bias(probs, k, strategy, False) for strategy in ("i", "iii", "3")]
    assert found == pytest.approx(without, abs=6e-5)


def test_expected_gradient_points_like_the_dense_one_at_uniform_logits() -> None:
    """E[do] = dense gradient / ((n - 1)(1 + 1/n)^2): for n = 4 a factor 1 / (3 * 1.5625)."""
    o_E = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for r, probability in draws(torch.full((4,), 0.25), 2, False):
        for z in (i for i, count in enumerate(r) if count):
            total = total + float(probability) / 2 * (weigh(o_E, r, 2, "3", z) @ L)
    total.backward()
    dense = 0.25 * (L - L.mean())
    torch.testing.assert_close(o_E.grad, dense / (3 * 1.25**2))
