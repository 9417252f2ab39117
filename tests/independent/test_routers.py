"""Every router against the reference, on random and on adversarial inputs.

Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from recsys_moe.routers import ROUTERS, Router, RouterShape, Routing
from tests.independent import reference_routers as ref
from tests.independent.reference_routers import Array, Parameters

D, BAD = 5, 2
SIZES = (6, 8)
EVERY = "every expert"
CASES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ref.INFERENCE),
    *((name, {"k": EVERY}) for name in ref.INFERENCE if "k" in ROUTERS[name].Config.model_fields),
    ("moesart", {"inference": "dense", "temperature": 0.5}),
    ("pps", {"inference": "dense", "temperature": 0.5}),
    ("softmax", {"inference": "topk", "inference_k": 3}),
    ("expert_choice", {"k": 1.5, "eval_group": 4}),
    ("dselect_k", {"k": 3, "gamma": 0.05}),
    ("comet", {"k": 3, "gamma": 0.05}),
    ("sparse_ot", {"k": 3, "gamma": 0.2, "steps": 5}),
    ("soft_topk", {"p": 2, "softness": 1.0}),
    ("soft_topk", {"k": 3, "softness": 2.0}),
    ("sparsemixer", {"k": 3, "epsilon": 0.5}),
    ("top_p", {"p_start": 0.8, "normalize": False}),
]

RANDOM = np.random.default_rng(0).standard_normal((9, D))
INPUTS = {
    "random": RANDOM,
    "ties in every row": np.zeros((9, D)),
    "equal rows": np.repeat(RANDOM[:3], 3, axis=0),
    "logits of 1e4": 1e4 * RANDOM,
    "one row": RANDOM[:1],
}


def made(name: str, settings: dict[str, Any], experts: int) -> Router:
    torch.manual_seed(0)
    settings = {key: experts if value is EVERY else value for key, value in settings.items()}
    found = ROUTERS[name]
    return found(found.Config(**settings), RouterShape(D, experts, 20)).double().eval()


def parameters(router: Router) -> Parameters:
    return {name: value.numpy() for name, value in router.state_dict().items()}


def expected(router: Router, settings: dict[str, Any], x_BD: Array) -> Array:
    name, experts = router.config.name, router.shape.num_experts
    given = {key: experts if value is EVERY else value for key, value in settings.items()}
    if name in ("dselect_k", "comet"):
        given["experts"] = experts
    if "p" in given:
        given["norm"] = given.pop("p")
    return ref.INFERENCE[name](x_BD, parameters(router), **given)


def routed(router: Router, x_BD: Array) -> Routing:
    return router(torch.from_numpy(x_BD), torch.arange(len(x_BD)))


@pytest.mark.parametrize("experts", SIZES)
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_weights_at_inference_are_those_of_the_formula(
    name: str, settings: dict[str, Any], kind: str, experts: int
) -> None:
    router, x_BD = made(name, settings, experts), INPUTS[kind]
    if kind == "equal rows":  # few bits: else equal rows may come out of a product unequal
        x_BD = (64 * x_BD).round() / 64
        with torch.no_grad():
            for parameter in router.parameters():
                parameter.copy_((64 * parameter).round() / 64)
    routing = routed(router, x_BD)
    np.testing.assert_allclose(
        routing.weights_BE.detach().numpy(), expected(router, settings, x_BD), atol=1e-9
    )
    assert not routing.weights_BE[~routing.selected_BE].any()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_no_row_gives_no_row(name: str, training: bool) -> None:
    routing = routed(made(name, {}, 8).train(training), RANDOM[:0])
    assert routing.weights_BE.shape == routing.selected_BE.shape == (0, 8)


TIED = ["moesart", "topk", "vmoe", "smoe", "base", "comet", "dselect_k", "loss_free", "sparsemixer"]


@pytest.mark.parametrize("name", TIED)
def test_ties_between_some_experts_go_to_the_lower_index(name: str) -> None:
    """Whole numbers, which both sides add up without rounding: ties are exact and many."""
    router, rng = made(name, {}, 8), np.random.default_rng(1)
    with torch.no_grad():
        for parameter in router.parameters():
            parameter.copy_(torch.from_numpy(rng.integers(-1, 2, parameter.shape).astype(float)))
    x_BD = rng.integers(-1, 2, (200, D)).astype(float)
    found = routed(router, x_BD).weights_BE.detach().numpy()
    np.testing.assert_allclose(found, expected(router, {}, x_BD), atol=1e-9)


@pytest.mark.parametrize("name", [name for name in ref.INFERENCE if name != "moesart"])
def test_a_row_of_nan_is_nan_and_harms_no_other_row(name: str) -> None:
    router, x_BD = made(name, {}, 8), RANDOM.copy()
    x_BD[BAD] = np.nan
    found = routed(router, x_BD).weights_BE.detach().numpy()
    assert np.isnan(found[BAD]).any()
    if not router.batch_dependent:
        rest = np.delete(x_BD, BAD, axis=0)
        np.testing.assert_allclose(
            np.delete(found, BAD, axis=0), expected(router, {}, rest), atol=1e-9
        )


@pytest.mark.parametrize("experts", SIZES)
@pytest.mark.parametrize(("name", "settings"), CASES)
def test_gradients_are_the_differences_of_the_formula(
    name: str, settings: dict[str, Any], experts: int
) -> None:
    """d sum(c w) / dx by central differences; what is selected does not change within 1e-6."""
    router = made(name, settings, experts)
    x_BD = torch.from_numpy(RANDOM[:4].copy()).requires_grad_()
    probe_BE = np.random.default_rng(1).standard_normal((4, experts))
    weights_BE = router(x_BD).weights_BE
    if not weights_BE.requires_grad:
        assert name == "kmeans" or (name == "moesart" and settings.get("inference") != "dense")
        return
    (weights_BE * torch.from_numpy(probe_BE)).sum().backward()
    for d in range(D):
        step = np.zeros(D)
        step[d] = 1e-6
        up, down = (expected(router, settings, RANDOM[:4] + sign * step) for sign in (1, -1))
        slope_B = ((up - down) * probe_BE).sum(1) / 2e-6
        assert x_BD.grad is not None
        np.testing.assert_allclose(x_BD.grad[:, d].numpy(), slope_B, atol=1e-6)


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("k", [2, 3, 6])
@pytest.mark.parametrize("sampler", ["gumbel", "sequential"])
@pytest.mark.parametrize("scale", [1.0, 0.0, 3.0])
def test_moesart_weighs_what_it_drew_by_equation_3(
    sampler: str, k: int, replacement: bool, scale: float
) -> None:
    settings = {"k": k, "sampler": sampler, "replacement": replacement, "temperature": 1.0}
    router = made("moesart", settings, 6).train()
    routing = routed(router, scale * RANDOM)
    g_BE = ref.softmax(ref.linear(scale * RANDOM, parameters(router), "gate"))
    r_BE = routing.selected_BE if routing.counts_BE is None else routing.counts_BE
    for g_E, r_E, w_E in zip(g_BE, r_BE.long().numpy(), routing.weights_BE, strict=True):
        assert r_E.sum() == k
        found = w_E.detach().numpy()
        assert any(np.allclose(found, w, atol=1e-9) for w in ref.moesart_training(g_E, r_E, k))


@pytest.mark.parametrize("rounds", [1, 50])
def test_sinkhorn_base_trains_on_the_plan(rounds: int) -> None:
    router = made("sinkhorn_base", {"rounds": rounds}, 6).train()
    x_BD = 3 * np.random.default_rng(2).standard_normal((24, D))
    found = routed(router, x_BD).weights_BE.detach().numpy()
    reference = ref.sinkhorn_base_training(x_BD, parameters(router), rounds)
    np.testing.assert_allclose(found, reference, atol=1e-9)


@pytest.mark.parametrize("rows", [4, 24, 60])
def test_base_trains_on_a_balanced_assignment_that_is_nearly_the_best(rows: int) -> None:
    """A row loses at most a bid: 1/50 of the largest range of a row's scores, less their mean."""
    router = made("base", {}, 6).train()
    x_BD = 3 * np.random.default_rng(rows).standard_normal((rows, D))
    scores_BE = ref.linear(x_BD, parameters(router), "gate")
    routing = routed(router, x_BD)
    selected_BE = routing.selected_BE.numpy()
    loads_E = selected_BE.sum(0)
    assert (selected_BE.sum(1) == 1).all() and loads_E.max() - loads_E.min() <= 1
    sigmoid_BE = 1 / (1 + np.exp(-scores_BE))
    expected_BE = np.where(selected_BE, sigmoid_BE, 0)
    np.testing.assert_allclose(routing.weights_BE.detach().numpy(), expected_BE, atol=1e-12)
    if rows % 6 == 0:
        slots = np.repeat(scores_BE, rows // 6, axis=1)
        best = slots[linear_sum_assignment(slots, maximize=True)].sum()
        bid = max(np.ptp(scores_BE - scores_BE.mean(0), axis=1).max() / 50, 1e-4)
        assert best - rows * bid <= scores_BE[selected_BE].sum() <= best + 1e-9


@pytest.mark.parametrize("experts", SIZES)
@pytest.mark.parametrize("gamma", [0.05, 1.0])
def test_losses_of_selectors_and_trees_are_those_of_the_formula(gamma: float, experts: int) -> None:
    selectors = made("dselect_k", {"gamma": gamma}, experts)
    losses = routed(selectors, RANDOM).losses
    q = ref.selector_probs(RANDOM, parameters(selectors), 2, gamma, experts)
    assert losses["entropy"].item() == pytest.approx(ref.entropy(q), rel=1e-6)
    unused = ref.unused_codes(q) if experts == 6 else 0.0
    assert losses["unused_codes"].item() == pytest.approx(unused, rel=1e-6)
    trees = made("comet", {"gamma": gamma}, experts)
    p = ref.leaf_probs(RANDOM, parameters(trees), 2, gamma, experts)
    found = routed(trees, RANDOM).losses["entropy"].item()
    assert found == pytest.approx(ref.entropy(p), rel=1e-6)


def test_hash_looks_up_and_thor_averages_and_draws_one() -> None:
    table, x_BD = made("hash", {}, 6), RANDOM
    expert_U = parameters(table)["expert_U"]
    assert (routed(table, x_BD).weights_BE.numpy() == np.eye(6)[expert_U[:9]]).all()
    average = made("thor", {}, 6)
    assert (routed(average, x_BD).weights_BE == 1 / 6).all()
    drawn = routed(average.train(), x_BD).weights_BE.numpy()
    assert (drawn == drawn[0]).all() and sorted(drawn[0]) == [0] * 5 + [1]
