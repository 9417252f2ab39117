"""Default MoE: the k largest probabilities are weights, the others those of running means.

The gate is the identity, so that the logits are the input. Axes: B batch, E experts.
"""

from __future__ import annotations

import pytest
import torch

from recsys_moe.routers import Router, router

O = torch.tensor([[2.0, 1, 0, -1]], dtype=torch.float64)  # noqa: E741
L = torch.tensor([0.5, -1, 2.5, 0.25], dtype=torch.float64)
"""dloss/dw of each expert: of its output, or of its mean where it is absent."""
G = [0.643914, 0.236883, 0.087144, 0.032059]
"""softmax(O): e^2, e, 1, 1/e = 7.389056, 2.718282, 1, .367879, divided by their sum 11.475217."""


def made(k: int = 2) -> Router:
    own = router("default_moe", input_dim=4, num_experts=4, k=k)
    torch.nn.init.eye_(own.gate.weight)  # type: ignore[union-attr, arg-type]
    return own.double()


@pytest.mark.parametrize("training", [True, False])
def test_the_probabilities_are_shared_out_among_experts_and_means(training: bool) -> None:
    routing = made().train(training)(O)
    assert routing.selected_BE.tolist() == [[True, True, False, False]]
    assert routing.weights_BE[0].tolist() == pytest.approx([*G[:2], 0, 0], abs=1e-6)
    assert routing.default_weights_BE[0].tolist() == pytest.approx([0, 0, *G[2:]], abs=1e-6)


def test_the_gradient_of_the_logits_is_that_of_the_dense_softmax() -> None:
    """do_i = g_i (L_i - sum g L). sum g L = .321957 - .236883 + .217860 + .008015 = .310949, so
    do_0 = .643914 * .189051 = .121732, do_1 = .236883 * -1.310949 = -.310541,
    do_2 = .087144 * 2.189051 = .190763, do_3 = .032059 * -.060949 = -.001954.
    """
    logits_BE = O.clone().requires_grad_()
    routing = made()(logits_BE)
    ((routing.weights_BE + routing.default_weights_BE) @ L).sum().backward()
    expected = [0.121732, -0.310541, 0.190763, -0.001954]
    assert logits_BE.grad[0].tolist() == pytest.approx(expected, abs=1e-6)  # type: ignore[index]


def test_with_all_experts_nothing_is_left_to_the_means() -> None:
    routing = made(4)(O)
    assert routing.weights_BE[0].tolist() == pytest.approx(G, abs=1e-6)
    assert not routing.default_weights_BE.any()
