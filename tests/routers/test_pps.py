"""PPS: exactly k experts, weights that sum to 1, unbiased for the mixture and its gradient.

Axes: B batch, E experts, N draws.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys_moe.routers import router
from recsys_moe.routers.pps import PPSRouter
from recsys_moe.routers.systematic import inclusion_probabilities, sample_systematic


def make(num_experts: int, **settings: object) -> PPSRouter:
    """A router whose logits are its input."""
    pps = router("pps", input_dim=num_experts, num_experts=num_experts, **settings)
    assert isinstance(pps, PPSRouter)
    pps.gate.weight.data = torch.eye(num_experts)
    return pps


def test_inclusion_golden() -> None:
    # k = 2: 2 g = (1, .6, .3, .1) sums to 2 as it is.
    # k = 3: 3 g = (1.8, .6, .3, .3): the first is sure; 2 (.2, .1, .1) / .4 = (1, .5, .5): the
    # second too; 1 (.1, .1) / .2 = (.5, .5) for the others.
    half = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    steep = torch.tensor([[0.6, 0.2, 0.1, 0.1]]).log()
    expected = torch.tensor([[1.0, 0.6, 0.3, 0.1], [1.0, 1.0, 0.5, 0.5]])
    both = torch.cat([inclusion_probabilities(half, 2), inclusion_probabilities(steep, 3)])
    torch.testing.assert_close(both.float(), expected)
    assert both.dtype == torch.float64  # a line of float32 would be too coarse for its rounding


def test_draw_golden() -> None:
    # The first is sure. The others end at .6, .9 and 1.0 on the line; the mark is at u.
    inclusion_BE = torch.tensor([[1.0, 0.6, 0.3, 0.1]], dtype=torch.float64).expand(4, -1)
    uniform_B = torch.tensor([0.0, 0.5, 0.7, 0.95])
    drawn_BE = sample_systematic(inclusion_BE, uniform_B, torch.arange(4))
    assert drawn_BE.nonzero()[:, 1].tolist() == [0, 1, 0, 1, 0, 2, 0, 3]


def test_the_line_follows_the_order() -> None:
    # In the order 3, 2, 1, 0 experts end at .1 (3), .4 (2), 1.0 (1) and 2.0 (0, not sure here):
    # u = .3 falls on 2, u + 1 = 1.3 on 0.
    inclusion_BE = torch.tensor([[0.9999, 0.6001, 0.3, 0.1]], dtype=torch.float64)
    drawn_BE = sample_systematic(inclusion_BE, torch.tensor([0.3]), torch.tensor([3, 2, 1, 0]))
    assert drawn_BE[0].tolist() == [True, False, True, False]


def outcomes(inclusion_E: Tensor, order_E: Tensor) -> list[tuple[float, Tensor]]:
    """Every draw of one row and its probability: u matters by the fractions of the line's ends."""
    line_E = inclusion_E.masked_fill(inclusion_E >= 1, 0)[order_E].cumsum(0)
    ends = sorted({0.0, 1.0, *(line_E % 1).tolist()})
    spans = [(a, b) for a, b in itertools.pairwise(ends) if b - a > 1e-9]
    middle_B = torch.tensor([(a + b) / 2 for a, b in spans], dtype=torch.float64)
    drawn_BE = sample_systematic(inclusion_E.expand(len(spans), -1), middle_B, order_E)
    return [(b - a, drawn_E) for (a, b), drawn_E in zip(spans, drawn_BE, strict=True)]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0])
def test_enumerated_law_is_unbiased_for_mixture_and_gradient(k: int, scale: float) -> None:
    """sum over draws of P(draw) sum_i w_i f_i = sum_i g_i f_i, and so its gradient by the logits.

    For every order of the line, so for the mean over random ones too.
    """
    generator = torch.Generator().manual_seed(k)
    logits_E = scale * torch.randn(4, generator=generator, dtype=torch.float64)
    values_E = torch.randn(4, generator=generator, dtype=torch.float64)
    logits_E.requires_grad_()
    (dense,) = torch.autograd.grad(logits_E.softmax(-1) @ values_E, logits_E)
    for order in itertools.permutations(range(4)):
        probs_E = logits_E.softmax(-1)
        inclusion_E = inclusion_probabilities(logits_E.detach()[None], k)[0]
        mean, total = torch.zeros((), dtype=torch.float64), 0.0
        for chance, drawn_E in outcomes(inclusion_E, torch.tensor(order)):
            assert drawn_E.sum() == k
            weights_E = (probs_E / inclusion_E)[drawn_E]
            assert float(weights_E.detach().sum()) == pytest.approx(1)
            mean, total = mean + chance * (weights_E @ values_E[drawn_E]), total + chance
        assert total == pytest.approx(1)
        torch.testing.assert_close(mean, probs_E @ values_E)
        (sampled,) = torch.autograd.grad(mean, logits_E)
        torch.testing.assert_close(sampled, dense)


def test_k_are_drawn_where_rounding_makes_the_line_longer_than_k() -> None:
    """.83 + .77 + ... is 3 and 4e-16 in float64: at u = 0 the marks 0, 1, 2 and 3 are on it."""
    lengths = [0.83, 0.77, 0.05, 0.42, 0.04, 0.87, 0.02]
    inclusion_BE = torch.tensor([lengths], dtype=torch.float64)
    assert inclusion_BE.cumsum(-1)[0, -1] > 3
    assert sample_systematic(inclusion_BE, torch.zeros(1), torch.arange(7)).sum() == 3


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_draws_of_the_router_are_unbiased(temperature: float) -> None:
    """10^5 draws: means within 5 standard errors of g, and of the gradient of the mixture."""
    rows = 100_000
    logits_E, values_E = torch.tensor([1.5, 0.0, -1.0, 0.3, -0.2]), torch.tensor([3.0, -1, 2, 0, 1])
    x_BE = logits_E.expand(rows, -1).clone().requires_grad_()
    pps = make(5, k=2, temperature=temperature)
    pps.stream.reseed(0)
    routing = pps(x_BE)
    assert (routing.selected_BE.sum(-1) == 2).all()
    torch.testing.assert_close(routing.weights_BE.sum(-1), torch.ones(rows))
    probs_E = (logits_E / temperature).softmax(-1)
    (gradient_BE,) = torch.autograd.grad((routing.weights_BE @ values_E).sum(), x_BE)
    # of sum_i g_i f_i by logit i
    dense_E = probs_E * (values_E - probs_E @ values_E) / temperature
    for draws_BE, expected_E in ((routing.weights_BE, probs_E), (gradient_BE, dense_E)):
        error_E = (draws_BE.mean(0) - expected_E).abs()
        assert (error_E <= 5 * draws_BE.std(0) / rows**0.5 + 1e-6).all()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_exactly_k_of_n_whatever_the_logits(data: st.DataObject) -> None:
    """Ties, underflow (float32 gives g = 0 beyond about 104), k = n: k experts, sum 1, finite."""
    num_experts = data.draw(st.integers(1, 9))
    k = data.draw(st.integers(1, num_experts))
    size = st.sampled_from([0.0, 1.0, -1.0, 30.0, -30.0, 200.0, -1e4, 1e30])
    logits_E = data.draw(st.lists(size, min_size=num_experts, max_size=num_experts))
    x_BE = torch.tensor([logits_E]).expand(50, -1)
    pps = make(num_experts, k=k)
    routing = pps(x_BE)
    assert (routing.selected_BE.sum(-1) == k).all()
    torch.testing.assert_close(routing.weights_BE.sum(-1), torch.ones(50))
    (routing.weights_BE * torch.randn(50, num_experts)).sum().backward()
    assert pps.gate.bias.grad is not None and pps.gate.bias.grad.isfinite().all()


def test_neighbours_are_drawn_together_too() -> None:
    """A line of one order would never draw both 0 and 1 of four equal experts with k = 2."""
    pps, pairs = make(4, k=2), set()
    for _ in range(60):
        drawn = pps(torch.zeros(1, 4)).selected_BE[0].nonzero()[:, 0]
        pairs.add(tuple(drawn.tolist()))
    assert pairs == set(itertools.combinations(range(4), 2))
