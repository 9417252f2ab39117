"""The soft top-k mask against golden numbers, isotonic regression and finite differences.

Axes: B batch, E experts. l is the softness.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import isotonic_regression
from torch import Tensor

from recsys_moe.routers.soft_topk import Norm, soft_topk_mask


def mask_of(values: list[float], k: int, softness: float, p: Norm) -> tuple[Tensor, Tensor]:
    values_BE = torch.tensor([values], dtype=torch.float64)
    mask_BE, selected_BE = soft_topk_mask(values_BE, k, softness, p)
    return mask_BE[0], selected_BE[0]


def naive_mask(values: np.ndarray, k: int, softness: float, exponent: int) -> np.ndarray:
    """By the definition: sort, pool adjacent violators with bisection for a block's level, unsort.

    A block's level v solves sum over the block of (v - s_i)^exponent + l^exponent c_i = 0, where
    c is 1 on the k largest.
    """
    order = np.argsort(-values, kind="stable")
    s, c = values[order], (np.arange(len(values)) < k).astype(float)

    def level(start: int, stop: int) -> float:
        low, high = s.min() - softness - 1, s.max() + 1
        for _ in range(200):
            v = (low + high) / 2
            total = ((v - s[start:stop]) ** exponent).sum() + softness**exponent * c[
                start:stop
            ].sum()
            low, high = (low, v) if total > 0 else (v, high)
        return v

    blocks: list[tuple[int, int, float]] = []
    for i in range(len(s)):
        blocks.append((i, i + 1, level(i, i + 1)))
        while len(blocks) > 1 and blocks[-1][2] > blocks[-2][2]:
            (start, _, _), (_, stop, _) = blocks[-2], blocks[-1]
            blocks[-2:] = [(start, stop, level(start, stop))]
    v = np.concatenate([np.full(stop - start, value) for start, stop, value in blocks])
    mask = np.empty_like(v)
    mask[order] = ((s - v) / softness) ** exponent
    return mask


GOLDEN: list[tuple[list[float], float, list[float], list[float]]] = [
    # x, l, mask for p = 2, mask for p = 4/3; k = 2
    # p = 2: v = -.5 gives (2.5, 1.5, .5, -.5) / 2, clipped to [0, 1]: 1 + .75 + .25 + 0 = 2
    ([2.0, 1, 0, -1], 2.0, [1, 0.75, 0.25, 0], [1, 0.8993, 0.1007, 0]),
    ([2.0, 1, 0, -1], 0.5, [1, 1, 0, 0], [1, 1, 0, 0]),
    # p = 2: v = (.3 + .1 + .05) / 3 - .5 * 2 / 3 = -.183333; (.3 + .183333) / .5 = .966667
    (
        [0.3, 0.1, 0.05, -0.2],
        0.5,
        [0.966667, 0.566667, 0.466667, 0],
        [1.000000, 0.586374, 0.400314, 0.013312],
    ),
    ([0.0, 0, -5, 5], 0.01, [0.5, 0.5, 0, 1], [0.5, 0.5, 0, 1]),
]


@pytest.mark.parametrize(("x", "softness", "linear", "smooth"), GOLDEN)
def test_golden_masks(
    x: list[float], softness: float, linear: list[float], smooth: list[float]
) -> None:
    assert mask_of(x, 2, softness, 2)[0].tolist() == pytest.approx(linear, abs=1e-6)
    assert mask_of(x, 2, softness, "4/3")[0].tolist() == pytest.approx(smooth, abs=5e-5)
    assert mask_of(x, 2, softness, 2)[1].tolist() == [value > 0 for value in linear]


NUMBERS = st.one_of(st.integers(-3, 3).map(float), st.integers(-300, 300).map(lambda i: i / 100))


@pytest.mark.slow
@settings(max_examples=150)
@given(st.integers(1, 9), st.data())
def test_the_mask_equals_naive_isotonic_regression(size: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(NUMBERS, min_size=size, max_size=size))
    k = data.draw(st.integers(1, size))
    softness = data.draw(st.sampled_from([0.01, 0.1, 0.7, 3.0]))
    for p, exponent in ((2, 1), ("4/3", 3)):
        found, selected = mask_of(values, k, softness, p)
        expected = naive_mask(np.array(values), k, softness, exponent)
        assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-6)
        assert found.sum().item() == pytest.approx(k)
        assert (found[~selected] == 0).all() and selected.sum() >= k


@pytest.mark.parametrize("k", [1, 3, 7])
def test_the_piecewise_linear_mask_equals_scikit_learns_isotonic_regression(k: int) -> None:
    values = np.random.default_rng(k).normal(size=8)
    order = np.argsort(-values)
    level = isotonic_regression(values[order] - 0.5 * (np.arange(8) < k), increasing=False)
    found, _ = mask_of(values.tolist(), k, 0.5, 2)
    assert found[order.copy()].tolist() == pytest.approx(((values[order] - level) / 0.5).tolist())


@pytest.mark.parametrize("p", [2, "4/3"])
def test_softness_towards_0_is_the_hard_top_k(p: Norm) -> None:
    found, selected = mask_of([0.3, -1.0, 0.9, 0.2], 2, 1e-30, p)
    assert found.tolist() == [1, 0, 1, 0] and selected.tolist() == [True, False, True, False]


@pytest.mark.parametrize("p", [2, "4/3"])
def test_equal_logits_share_the_mask(p: Norm) -> None:
    assert mask_of([0.0] * 5, 2, 0.1, p)[0].tolist() == pytest.approx([0.4] * 5)
    assert mask_of([0.0] * 5, 5, 0.1, p)[0].tolist() == [1] * 5


def values(scale: float = 0.3) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return scale * torch.randn(6, 7, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("p", [2, "4/3"])
@pytest.mark.parametrize("softness", [0.1, 1.0])
@pytest.mark.parametrize("k", [1, 3, 7])
def test_the_mask_has_the_gradient_of_finite_differences(p: Norm, softness: float, k: int) -> None:
    def mask(x_BE: Tensor) -> Tensor:
        return soft_topk_mask(x_BE, k, softness, p)[0]

    assert torch.autograd.gradcheck(mask, (values().requires_grad_(),), eps=1e-7)


def test_the_linear_gradient_subtracts_the_mean_of_the_block() -> None:
    """p = 2: (identity - averaging within the block) / l; entries outside have none."""
    x_BE = torch.tensor([[0.3, 0.1, 0.05, -0.2]], dtype=torch.float64, requires_grad=True)
    mask_BE, _ = soft_topk_mask(x_BE, 2, 0.5, 2)
    mask_BE[0, 1].backward()
    assert x_BE.grad is not None
    # block of three: [-1/3, 2/3, -1/3] / .5
    assert x_BE.grad[0].tolist() == pytest.approx([-2 / 3, 4 / 3, -2 / 3, 0])


@pytest.mark.parametrize("p", [2, "4/3"])
@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e6, 1e30])
def test_float32_stays_finite_and_normalised_for_any_size_of_logits(p: Norm, scale: float) -> None:
    x_BE = (scale * torch.randn(64, 7, generator=torch.Generator().manual_seed(0))).requires_grad_()
    mask_BE, _ = soft_topk_mask(x_BE, 3, 0.1, p)
    assert torch.allclose(mask_BE.sum(-1), torch.tensor(3.0), atol=1e-4)
    (mask_BE * torch.arange(7)).sum().backward()
    assert x_BE.grad is not None and torch.isfinite(x_BE.grad).all()
