"""The dense softmax and top-k gates against golden numbers. o = [2, 1, 0, -1], L_i = dloss/dw_i.

The gate is the identity, so that the logits are the input. Axes: B batch, E experts.
"""

from __future__ import annotations

import pytest
import torch

from recsys_moe.routers import ROUTERS, Router, RouterShape

O = torch.tensor([[2.0, 1, 0, -1]], dtype=torch.float64)  # noqa: E741
L = torch.tensor([0.5, -1, 2.5, 0.25], dtype=torch.float64)
G = [0.643914, 0.236883, 0.087144, 0.032059]
TOP2 = [0.731059, 0.268941, 0, 0]  # softmax([2, 1]) = 1 / (1 + e^-1)


def identity_router(name: str, **settings: object) -> Router:
    router = ROUTERS[name](ROUTERS[name].Config(**settings), RouterShape(4, 4))
    torch.nn.init.eye_(router.gate.weight)
    return router.double()


@pytest.mark.parametrize("training", [True, False])
def test_the_dense_gate_is_the_softmax_of_all_logits(training: bool) -> None:
    routing = identity_router("softmax").train(training)(O)
    assert routing.weights_BE[0].tolist() == pytest.approx(G, abs=1e-6)
    assert routing.selected_BE.all()


def test_sparse_inference_renormalises_what_it_keeps_and_trains_densely() -> None:
    router = identity_router("softmax", inference="topk", inference_k=2)
    assert router.train()(O).weights_BE[0].tolist() == pytest.approx(G, abs=1e-6)
    kept = router.eval()(O)
    assert kept.weights_BE[0].tolist() == pytest.approx(TOP2, abs=1e-6)
    assert kept.selected_BE[0].tolist() == [True, True, False, False]
    assert kept.probs_BE[0].tolist() == pytest.approx(G, abs=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_topk_is_the_softmax_of_the_kept_logits(training: bool) -> None:
    routing = identity_router("topk", k=2).train(training)(O)
    assert routing.weights_BE[0].tolist() == pytest.approx(TOP2, abs=1e-6)
    assert routing.probs_BE[0].tolist() == pytest.approx(G, abs=1e-6)


def test_topk_teaches_the_kept_logits_only() -> None:
    """do_0 = w_0 w_1 (L_0 - L_1) = .731059 * .268941 * 1.5 = .294918, and do_1 its negative."""
    logits_BE = O.clone().requires_grad_()
    (identity_router("topk", k=2)(logits_BE).weights_BE @ L).sum().backward()
    assert logits_BE.grad[0].tolist() == pytest.approx([0.294918, -0.294918, 0, 0], abs=1e-6)
