"""MOESART's bias |E[w] - g|_2 and expected gradient by exact enumeration of all draws.

With replacement the estimate of strategy (iii) is unbiased; without, the sampling law is
sequential, and eq. (3) trades bias against the router's gradient.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from research.paper.bias import bias, distribution, draws
from tests.routers.test_moesart import L, O, router, weigh


def shape(name: str, n: int) -> Tensor:
    if name == "base":
        return O.softmax(-1)
    if name == "random":
        values = torch.from_numpy(np.random.default_rng(0).random(n))
        return values / values.sum()
    return distribution(name, n)


def counts(drawn: tuple[int, ...], n: int) -> list[int]:
    return [drawn.count(i) for i in range(n)]


@pytest.mark.parametrize(
    ("n", "k", "g", "with_replacement", "without"),
    [  # |E[w] - g|_2 of (i), (ii), (iii), (3) with replacement; of (i), (iii), (3) without
        (8, 2, "uniform", [0, 0, 0, 0], [0, 0, 0]),
        (8, 2, "1/i", [0.1395, 0.1395, 0, 0.0424], [0.1313, 0.0562, 0.0040]),
        (8, 2, "2^-i", [0.1447, 0.1447, 0, 0.0538], [0.1224, 0.1109, 0.0273]),
        (8, 2, "3^-i", [0.1575, 0.1575, 0, 0.0679], [0.0996, 0.2403, 0.0981]),
        (8, 2, "linear", [0.0660, 0.0660, 0, 0.0147], [0.0643, 0.0137, 0.0039]),
        (8, 2, "random", [0.0481, 0.0481, 0, 0.0113], [0.0466, 0.0111, 0.0027]),
        (8, 2, "0.9 on one", [0.0932, 0.0932, 0, 0.0442], [0.0810, 0.4323, 0.1887]),
        (8, 4, "1/i", [0.1924, 0.2280, 0, 0.0624], [0.1372, 0.1518, 0.1083]),
        (8, 4, "2^-i", [0.1721, 0.2191, 0, 0.0837], [0.0671, 0.2876, 0.2238]),
        (8, 4, "linear", [0.0843, 0.0963, 0, 0.0198], [0.0715, 0.0476, 0.0301]),
        (8, 4, "random", [0.0586, 0.0680, 0, 0.0157], [0.0467, 0.0409, 0.0268]),
        (8, 4, "0.9 on one", [0.1003, 0.1042, 0, 0.0698], [0.0583, 0.6949, 0.5721]),
        (16, 2, "1/i", [0.1410, 0.1410, 0, 0.0353], [0.1377, 0.0366, 0.0075]),
        (16, 2, "2^-i", [0.1451, 0.1451, 0, 0.0538], [0.1233, 0.1099, 0.0266]),
        (16, 2, "0.9 on one", [0.0916, 0.0916, 0, 0.0434], [0.0861, 0.4180, 0.1790]),
        (9, 4, "1/i", [0.1985, 0.2318, 0, 0.0598], [0.1506, 0.1400, 0.0981]),
        (9, 4, "2^-i", [0.1729, 0.2196, 0, 0.0836], [0.0689, 0.2859, 0.2222]),
        (4, 2, "base", [0.153967, 0.153967, 0, 0.065337], [0.098820, 0.218711, 0.087931]),
        (4, 3, "base", [0.174180, 0.201060, 0, 0.094983], [0.045073, 0.368730, 0.264084]),
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


def test_with_replacement_the_adjusted_expert_is_uniform_among_the_distinct_ones() -> None:
    """Of rows that drew expert 0 three times and expert 1 once half adjust expert 0.

    With g = (.643914, .236883, ...) and k = 4, w_0 / w_1 is then 3 g_0 / (1/3) = 5.80, and 1 / g_1
    = 4.22 where expert 1 is. By counts it would be three quarters of the rows.
    """
    routing = router(replacement=True, k=4).train()(O.float().expand(40_000, -1))
    assert routing.counts_BE is not None
    is_alike_B = (routing.counts_BE == torch.tensor([3, 1, 0, 0])).all(1)
    ratio_A = routing.weights_BE[is_alike_B, 0] / routing.weights_BE[is_alike_B, 1]
    assert {round(ratio, 2) for ratio in ratio_A.tolist()} == {5.8, 4.22}
    # 40,000 rows with probability 4 g_0^3 g_1 = .253; five standard errors of their share
    assert len(ratio_A) == pytest.approx(10_120, abs=500)
    assert (ratio_A > 5).double().mean().item() == pytest.approx(0.5, abs=2.5 / 9_600**0.5)


def expected_gradient(o_E: Tensor, k: int, replacement: bool) -> Tensor:
    """E[dloss/do] of eq. (3) over all draws and all choices of the adjusted expert."""
    o_E = o_E.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for drawn, probability in draws(o_E.detach().softmax(-1), k, replacement):
        chosen, r = sorted(set(drawn)), counts(drawn, len(o_E))
        for z in chosen:
            total = total + probability / len(chosen) * (weigh(o_E, r, k, "3", z) @ L)
    total.backward()
    assert o_E.grad is not None
    return o_E.grad


@pytest.mark.parametrize(
    ("k", "replacement", "gradient", "cosine", "ratio"),
    [
        (2, False, [0.064246, -0.087470, 0.023298, -0.000075], 0.9244, 0.2889),
        (2, True, [0.032271, -0.046882, 0.014508, 0.000104], 0.9418, 0.1529),
        (3, False, [0.036654, -0.094508, 0.055460, 0.002393], 0.9995, 0.3008),
    ],
)
def test_expected_gradient_golden(
    k: int, replacement: bool, gradient: list[float], cosine: float, ratio: float
) -> None:
    """Against the dense gradient g (L - g.L): nearly its direction, a fraction of its size."""
    found = expected_gradient(O, k, replacement)
    g = O.softmax(-1)
    dense = g * (L - g @ L)
    assert found.tolist() == pytest.approx(gradient, abs=1e-6)
    assert (found @ dense / (found.norm() * dense.norm())).item() == pytest.approx(cosine, abs=5e-5)
    assert (found.norm() / dense.norm()).item() == pytest.approx(ratio, abs=5e-5)
