"""SparseMixer-v2 against golden numbers, by enumeration of its draws, and by many draws.

Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recsys_moe.routers import RouterShape
from recsys_moe.routers.sparsemixer import SparseMixerRouter, close_softmax, scaled

LOGITS = torch.tensor([[2, 1.9, 1.7, -1]], dtype=torch.float64)
"""Gaps to 2: .1/2, .3/2, 3/2, so the first three are within .2."""
P = [0.377979, 0.342009, 0.280013, 0]
"""1, e^-.1 = .904837, e^-.3 = .740818 over their sum 2.645656."""


def identity_router(**settings: object) -> SparseMixerRouter:
    """Its logits are its input."""
    router = SparseMixerRouter(SparseMixerRouter.Config(**settings), RouterShape(4, 4)).double()
    with torch.no_grad():
        router.gate.weight.copy_(torch.eye(4))
    return router.train()


def close(logits: list[float], taken: tuple[int, ...] = (), epsilon: float = 0.1) -> Tensor:
    logits_BE = torch.tensor([logits], dtype=torch.float64)
    taken_BE = torch.zeros_like(logits_BE, dtype=torch.bool)
    taken_BE[0, list(taken)] = True
    return close_softmax(logits_BE, taken_BE, epsilon)[0]


def test_the_softmax_is_over_logits_close_to_the_largest() -> None:
    assert close([2, 1.9, 1.7, -1]).tolist() == pytest.approx(P, abs=1e-6)
    # epsilon .05: only the gap .05 is within .1; 1 / 1.904837
    expected = [0.524979, 0.475021, 0, 0]
    assert close([2, 1.9, 1.7, -1], epsilon=0.05).tolist() == pytest.approx(expected, abs=1e-6)


def test_zero_logits_are_all_close_and_so_is_everything_from_epsilon_1_on() -> None:
    assert close([0, 0, 0, 0]).tolist() == [0.25] * 4
    assert (close([5, 0, -5, -50], epsilon=1) > 0).all()


def test_a_row_may_sum_to_k() -> None:
    """1 is .5 below 2, relatively, and -1 is 2 below 1: each softmax has a single candidate."""
    routing = identity_router().eval()(torch.tensor([[2.0, 1, -1, -1]]).double())
    assert routing.weights_BE[0].tolist() == [1, 1, 0, 0]
    assert identity_router().max_sum == 2


@pytest.mark.parametrize("scale", [1.0, 1 / 3])
def test_the_gradient_is_that_of_the_softmax_whatever_the_scale(scale: float) -> None:
    """Expert 1: p_1 (1[j = 1] - p_j), e.g. .342009 * (1 - .342009) = .225039."""
    logits_BE = LOGITS.clone().requires_grad_()
    probs_BE = close_softmax(logits_BE, torch.zeros_like(logits_BE).bool(), 0.1)
    weight_B1 = scaled(probs_BE[:, 1:2], torch.tensor([[scale]]))
    assert weight_B1.item() == pytest.approx(scale * 0.342009, abs=1e-6)
    weight_B1.sum().backward()
    expected = [-0.129272, 0.225039, -0.095767, 0]
    assert logits_BE.grad[0].tolist() == pytest.approx(expected, abs=1e-6)


def cubic(expert: int, weight: Tensor) -> Tensor:
    """Any loss of degree 3 in the weight of the expert that was drawn; 7 at 0 for all."""
    a, b, c = [(1, -2, 0.5), (-3, 1, 2), (0.7, 4, -1), (1, 1, 1)][expert]
    return 7 + a * weight + b * weight**2 + c * weight**3


def gradient_of(loss: Tensor, logits_BE: Tensor) -> Tensor:
    return torch.autograd.grad(loss, logits_BE, retain_graph=True)[0]


def test_by_enumeration_the_mean_gradient_is_what_heun_s_rule_promises() -> None:
    """k = 1, all draws (i, m): sum over i of (L_i(p_i) - L_i(0)) grad p_i, for cubic L.

    The largest has m = 1 alone: p L'(p) grad p in place of the difference.
    """
    logits_BE = LOGITS.clone().requires_grad_()
    probs_BE = close_softmax(logits_BE, torch.zeros_like(logits_BE).bool(), 0.1)
    mean, promised = torch.zeros_like(LOGITS), torch.zeros_like(LOGITS)
    for i in range(3):
        prob_B1 = probs_BE[:, i : i + 1]
        p = prob_B1.detach().requires_grad_()
        slope = torch.autograd.grad(cubic(i, p).sum(), p)[0]
        for scale, chance in [(1.0, 1.0)] if i == 0 else [(1.0, 1 / 4), (1 / 3, 3 / 4)]:
            loss = cubic(i, scaled(prob_B1, torch.tensor([[scale]]))).sum()
            mean += chance * p.item() * gradient_of(loss, logits_BE)
        gain = p * slope if i == 0 else cubic(i, p) - 7
        promised += gain.item() * gradient_of(prob_B1.sum(), logits_BE)
    torch.testing.assert_close(mean, promised)


def test_draws_have_the_law() -> None:
    """100,000 rows: frequencies p_i, and of the scale 1 but for the largest 1/4.

    Standard errors: .0015 of p; .0014 times sqrt(1 / .28) = .0026 of 1/4.
    """
    router = identity_router(k=1)
    router.stream.reseed(0)
    routing = router(LOGITS.expand(100_000, 4))
    assert (routing.selected_BE.sum(-1) == 1).all()
    drawn_E = routing.selected_BE.double().mean(0)
    assert drawn_E.tolist() == pytest.approx(P, abs=0.006)
    scale_BE = routing.weights_BE / torch.tensor([P[0], P[1], P[2], 1])
    for expert, share in enumerate([1, 1 / 4, 1 / 4]):
        scale_B = scale_BE[routing.selected_BE[:, expert], expert]
        is_one_B = (scale_B - 1).abs() < 1e-5
        assert (is_one_B | ((scale_B - 1 / 3).abs() < 1e-5)).all()
        assert is_one_B.double().mean().item() == pytest.approx(share, abs=0.012)


def test_the_second_weight_has_the_law_and_the_gradient_of_the_first() -> None:
    """0 is alone at first: (10 - 1) / 10 is far. Then 1 and .95 are close, 1 / (1 + e^-.05) each.

    The second weight is m q_i with m = 1 for expert 1, else 1 by chance 1/4 or 1/3; its gradient by
    o_1 is q_1 q_2 = .249844 for expert 1 and the negative of it for 2, whatever m.
    """
    rows, q_1, q_2 = 20_000, 0.512497, 0.487503
    logits_BE = torch.tensor([[10, 1, 0.95, -5]]).double().repeat(rows, 1).requires_grad_()
    router = identity_router()
    router.stream.reseed(0)
    routing = router(logits_BE)
    assert (routing.weights_BE[:, 0] == 1).all()
    is_1_B, is_2_B = routing.selected_BE[:, 1], routing.selected_BE[:, 2]
    assert is_1_B.double().mean().item() == pytest.approx(q_1, abs=0.018)  # standard error .0035
    assert routing.weights_BE[is_1_B, 1].tolist() == pytest.approx([q_1] * int(is_1_B.sum()))
    scale_B = routing.weights_BE[is_2_B, 2] / q_2
    is_one_B = (scale_B - 1).abs() < 1e-5
    assert (is_one_B | ((scale_B - 1 / 3).abs() < 1e-5)).all()
    # standard error .0044
    assert is_one_B.double().mean().item() == pytest.approx(1 / 4, abs=0.022)
    (gradient_BE,) = torch.autograd.grad(routing.weights_BE.sum(), logits_BE)
    expected_B = torch.where(is_1_B, 0.249844, -0.249844).double()
    torch.testing.assert_close(gradient_BE[:, 1], expected_B, atol=1e-6, rtol=0)


def test_a_uniform_number_of_0_draws_nobody_who_is_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its logarithm is -inf: all keys would be 0, and the first expert the one drawn."""
    router = identity_router(k=1)
    monkeypatch.setattr(router, "_uniform", torch.zeros_like)
    assert not router(LOGITS.flip(-1)).selected_BE[0, 0]


def test_as_many_experts_as_there_are_take_every_one_once() -> None:
    routing = identity_router(k=4)(LOGITS.expand(50, 4))
    assert routing.selected_BE.all() and routing.weights_BE.max() <= 1


def test_rows_and_tasks_draw_independently() -> None:
    selected_BE = identity_router(k=1)(LOGITS.expand(64, 4)).selected_BE
    assert len(selected_BE.unique(dim=0)) == 3
