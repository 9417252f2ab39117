"""Joint choice: one set of experts for all tasks, and what the estimate of each is in the mean.

Axes: B batch, T tasks, E experts, D input width.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys_moe.errors import ConfigError
from recsys_moe.model.experts import Experts
from recsys_moe.model.moe import MoE, naive_moe
from recsys_moe.model.penalties import penalty
from recsys_moe.routers import Router, RouterShape, Routing, find_router, router
from recsys_moe.routers.joint import log_mixture, route, route_task
from recsys_moe.routers.moesart import sampled_weights
from recsys_moe.routers.pps import inclusion_probabilities
from research.paper.bias import draws
from tests.routers.test_moesart import L
from tests.routers.test_pps import outcomes

D, E, H = 5, 6, 7
NAMES = ("moesart", "pps", "topk")
KINDS: list[dict[str, Any]] = [
    *({"name": name} for name in NAMES),
    {"name": "moesart", "inference": "dense"},
    {"name": "moesart", "inference": "sampled"},
    {"name": "moesart", "strategy": "iii", "temperature": 1.0},
    {"name": "moesart", "replacement": True},
    {"name": "moesart", "sampler": "sequential"},
    {"name": "topk", "noise": True},
]


def make(tasks: int = 2, **settings: Any) -> list[Router]:
    torch.manual_seed(0)
    kind, given = find_router(settings["name"]), {"joint": True, "k": 2, **settings}
    shapes = [RouterShape(D, E, task=task, num_tasks=tasks) for task in range(tasks)]
    routers = [kind(kind.Config(**given), shape) for shape in shapes]
    for number, one in enumerate(routers):
        one.stream.reseed(number)
    return routers


def batch(rows: int = 40) -> Tensor:
    return 2 * torch.randn(rows, D, generator=torch.Generator().manual_seed(1))


def probabilities(routings: list[Routing]) -> Tensor:
    """(T, B, E)."""
    return torch.stack([routing.probs_BE for routing in routings])  # type: ignore[misc]


# --- the mean of the estimates, by enumeration of all draws


def tasks_of(seed: int, tasks: int, scale: float) -> tuple[Tensor, Tensor]:
    """Logits and values of the experts (T, 4) of tasks that want different ones."""
    generator = torch.Generator().manual_seed(seed)
    both = torch.randn(2, tasks, 4, generator=generator, dtype=torch.float64)
    return (scale * both[0]).requires_grad_(), both[1]


@pytest.mark.parametrize("tasks", [1, 2, 3])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("scale", [0.0, 1.0, 4.0])
def test_pps_is_unbiased_for_every_task_and_its_gradient(tasks: int, k: int, scale: float) -> None:
    """sum over draws of P(draw) sum_i w_ti f_ti = sum_i g_ti f_ti with w_t = g_t / pi of q."""
    logits_TE, values_TE = tasks_of(k, tasks, scale)
    (dense_TE,) = torch.autograd.grad((logits_TE.softmax(-1) * values_TE).sum(), logits_TE)
    probs_TE = logits_TE.softmax(-1)
    log_q_E = log_mixture([log_E[None] for log_E in logits_TE.log_softmax(-1)])[0]
    inclusion_E = inclusion_probabilities(log_q_E[None], k)[0]
    for order in itertools.permutations(range(4)):
        mean_T = torch.zeros(tasks, dtype=torch.float64)
        for chance, drawn_E in outcomes(inclusion_E, torch.tensor(order)):
            weights_TE = probs_TE / inclusion_E * drawn_E
            assert float(weights_TE.detach().sum(-1).max()) <= tasks + 1e-9
            mean_T = mean_T + chance * (weights_TE * values_TE).sum(-1)
        torch.testing.assert_close(mean_T, (probs_TE * values_TE).sum(-1))
        (sampled_TE,) = torch.autograd.grad(mean_T.sum(), logits_TE, retain_graph=True)
        torch.testing.assert_close(sampled_TE, dense_TE)


def test_draws_of_the_pps_router_are_unbiased_for_both_tasks() -> None:
    """10^5 draws: means within 5 standard errors of each task's g."""
    rows, routers = 100_000, make(name="pps")
    routings = route(routers, batch(1).expand(rows, -1), None)
    for routing in routings:
        error_E = (routing.weights_BE.mean(0) - routing.probs_BE[0]).abs()  # type: ignore[index]
        assert (error_E <= 5 * routing.weights_BE.std(0) / rows**0.5 + 1e-6).all()


def expected(logits_TE: Tensor, k: int, strategy: Any) -> Tensor:
    """E[w] (T, E) over all sets of k that are drawn from q and all choices of z."""
    logs_TE = logits_TE.log_softmax(-1)
    log_q_E = log_mixture([log_E[None] for log_E in logs_TE])[0]
    total_TE = torch.zeros_like(logits_TE)
    for drawn, chance in draws(log_q_E.exp(), k, replacement=False):
        counts = torch.tensor([[drawn.count(i) for i in range(len(log_q_E))]] * len(logs_TE))
        for z in drawn:
            adjusted = torch.tensor([z] * len(logs_TE))
            given = {"k": k, "strategy": strategy, "log_drawn_BE": log_q_E.expand_as(logs_TE)}
            weights_TE = sampled_weights(logs_TE, counts, adjusted, **given)
            total_TE = total_TE + chance / k * weights_TE
    return total_TE


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("strategy", ["i", "iii", "3"])
def test_tasks_that_agree_have_the_weights_of_separate_choices(k: int, strategy: Any) -> None:
    """q = g then, so that every draw has the same chance and, by eq. (3), the same weights."""
    logits_TE = tasks_of(0, 1, 1.0)[0].detach().expand(2, -1)
    log_g_E = logits_TE[0].log_softmax(-1)
    torch.testing.assert_close(log_mixture([log_g_E[None]] * 2)[0], log_g_E)
    apart_E = torch.zeros(4, dtype=torch.float64)
    for drawn, chance in draws(log_g_E.exp(), k, replacement=False):
        counts = torch.tensor([[int(i in drawn) for i in range(4)]])
        for z in drawn:
            given = {"k": k, "strategy": strategy}
            own = sampled_weights(log_g_E[None], counts, torch.tensor([z]), **given)[0]
            apart_E = apart_E + chance / k * own
    torch.testing.assert_close(expected(logits_TE, k, strategy), apart_E.expand(2, -1))


G = torch.tensor([[0.6, 0.2, 0.1, 0.1], [0.1, 0.2, 0.1, 0.6]], dtype=torch.float64)
"""Two tasks that want different experts; q = (.35, .2, .1, .35)."""


def test_eq_3_by_hand() -> None:
    """k = 2, drawn 0 and 1, z = 1. The other's weight before the softmax is g_0 / (1 q_0).

    Task 0: .6 / .35 = 1.714286 beside .2: w = (.895522, .104478). Task 1: .1 / .35 = .285714
    beside .2: (.588235, .411765). Separate choices would have 1 beside .2 for both.
    """
    log_q_BE = log_mixture([row[None].log() for row in G]).expand(2, -1)
    given: dict[str, Any] = {"k": 2, "strategy": "3", "log_drawn_BE": log_q_BE}
    counts, adjusted = torch.tensor([[1, 1, 0, 0]] * 2), torch.tensor([1, 1])
    weights_TE = sampled_weights(G.log(), counts, adjusted, **given)
    by_hand = [[0.895522, 0.104478, 0, 0], [0.588235, 0.411765, 0, 0]]
    torch.testing.assert_close(weights_TE.float(), torch.tensor(by_hand))


@pytest.mark.parametrize(
    ("k", "bias", "cosines", "apart"),
    [(2, 0.1356, [0.9974, 0.9744], 0.0596), (3, 0.0859, [0.9997, 0.9989], 0.2199)],
)
def test_bias_and_gradient_of_eq_3_by_enumeration(
    k: int, bias: float, cosines: list[float], apart: float
) -> None:
    """|E[w] - g|_2, beside that of separate choices, and the mean gradient's cosine with the dense.

    As for separate choices eq. (3) is biased, less so with k = 3 here, and its gradient points
    where the dense one does.
    """
    logits_TE = G.log().requires_grad_()
    mean_TE = expected(logits_TE, k, "3")
    assert (mean_TE - G).norm(dim=-1).tolist() == pytest.approx([bias, bias], abs=6e-5)
    assert float((expected(G[:1].log(), k, "3") - G[:1]).norm()) == pytest.approx(apart, abs=6e-5)
    (gradient_TE,) = torch.autograd.grad((mean_TE * L).sum(), logits_TE)
    found = torch.cosine_similarity(gradient_TE, G * (L - (G @ L)[:, None]))
    assert found.tolist() == pytest.approx(cosines, abs=6e-5)


def test_the_correction_has_no_gradient_and_so_no_task_teaches_another() -> None:
    routers = make(name="moesart")
    loss = (route(routers, batch(), None)[0].weights_BE @ torch.arange(float(E))).sum()
    loss.backward()
    assert routers[0].gate.weight.grad.abs().sum() > 0  # type: ignore[union-attr]
    assert routers[1].gate.weight.grad is None  # type: ignore[union-attr]


# --- the choice


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("given", KINDS, ids=str)
@pytest.mark.parametrize("tasks", [2, 3])
def test_all_tasks_have_the_same_experts_and_weights_of_their_own(
    given: dict[str, Any], tasks: int, training: bool
) -> None:
    routers = [one.train(training) for one in make(tasks, **given)]
    routings = route(routers, batch(), None)
    selected = [routing.selected_BE for routing in routings]
    assert all(torch.equal(selected[0], one) for one in selected)
    most = E if given.get("inference") == "dense" and not training else 2
    assert selected[0].sum(-1).max() == most
    assert not torch.equal(routings[0].weights_BE, routings[1].weights_BE)
    for one, routing in zip(routers, routings, strict=True):
        assert (routing.weights_BE >= 0).all()
        assert (routing.weights_BE[~routing.selected_BE] == 0).all()
        assert (routing.weights_BE.sum(-1) <= one.max_sum + 1e-5).all()


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_keeps_the_set_with_the_most_of_all_tasks_and_renormalises(name: str) -> None:
    """Against every set of two: sum over tasks and the set of g, and w = g / its sum there."""
    routings = route([one.eval() for one in make(3, name=name)], batch(), None)
    probs_TBE = probabilities(routings)
    sets = list(itertools.combinations(range(E), 2))
    best = torch.stack([probs_TBE.sum(0)[:, list(one)].sum(-1) for one in sets]).argmax(0)
    for routing, probs_BE in zip(routings, probs_TBE, strict=True):
        for row, number in enumerate(best.tolist()):
            kept = list(sets[number])
            weights = torch.zeros(E).index_copy(0, torch.tensor(kept), probs_BE[row, kept])
            torch.testing.assert_close(routing.weights_BE[row], weights / weights.sum())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("given", KINDS, ids=str)
def test_a_single_task_is_as_without_it_bit_for_bit(given: dict[str, Any], training: bool) -> None:
    found, apart = (
        route([one.train(training) for one in make(1, **given, joint=joint)], batch(), None)[0]
        for joint in (True, False)
    )
    assert torch.equal(found.weights_BE, apart.weights_BE)
    assert torch.equal(found.selected_BE, apart.selected_BE)


@pytest.mark.parametrize("given", KINDS, ids=str)
def test_one_task_alone_is_as_among_all(given: dict[str, Any]) -> None:
    """As a ranking asks; the streams start anew, as they do for each forward pass."""
    for training, task in itertools.product((True, False), (0, 1)):
        routers = [one.train(training) for one in make(**given)]
        alone = route_task(routers, task, batch(), None)
        among = route([one.train(training) for one in make(**given)], batch(), None)[task]
        assert torch.equal(alone.weights_BE, among.weights_BE)


# --- in the layer


@pytest.mark.parametrize("dispatch", ["sparse", "dense", "auto"])
@pytest.mark.parametrize("given", KINDS, ids=str)
def test_the_layer_equals_the_naive_mixture_in_values_and_gradients(
    given: dict[str, Any], dispatch: Any
) -> None:
    for training in (True, False):
        experts = Experts(E, D, H, dropout=0.0)
        layer = MoE(experts, make(**given), dispatch, seed=3).train(training)
        leaves = [*layer.parameters()]
        layer.reseed(5)
        mixed_BTH, _ = layer(batch())
        layer.reseed(5)
        weights_BTE = torch.stack([r.weights_BE for r in route(layer.routers, batch(), None)], 1)
        naive_BTH = naive_moe(batch(), weights_BTE, experts.kernel_EDH, experts.bias_EH)
        torch.testing.assert_close(mixed_BTH, naive_BTH, rtol=1e-5, atol=1e-5)
        seeds_BTH = torch.randn(mixed_BTH.shape, generator=torch.Generator().manual_seed(2))
        for one, other in zip(
            *(
                torch.autograd.grad((y * seeds_BTH).sum(), leaves, allow_unused=True)
                for y in (mixed_BTH, naive_BTH)
            ),
            strict=True,
        ):
            if other is not None:
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_joint_routers_are_built_alike() -> None:
    routers = [*make(name="moesart")[:1], *make(name="moesart", joint=False)[1:]]
    with pytest.raises(ConfigError, match=r"joint=true must be of one kind .* got Moesart"):
        MoE(Experts(E, D, H, dropout=0.0), routers)


def test_a_learned_permutation_is_each_tasks_own_and_refused() -> None:
    with pytest.raises(ConfigError, match=r"joint must be false with .*permutation=true, got true"):
        router("topk", input_dim=D, num_experts=E, joint=True, permutation=True)


# --- penalties


def test_the_lasso_of_a_joint_choice_counts_what_tasks_want_off_the_common_set() -> None:
    """G with k = 2: q keeps 0 and 3, so each task has .2 + .1 off it; alone each has .1 + .1."""
    routings = [Routing(g, g > 0, g, log_mixture_BE=G.mean(0, True).log()) for g in G[:, None]]
    found = [float(penalty({"trimmed_lasso": 1.0}, routing, 2)) for routing in routings]
    assert found == pytest.approx([0.3, 0.3])
    apart = [float(penalty({"trimmed_lasso": 1.0}, Routing(g, g > 0, g), 2)) for g in G[:, None]]
    assert apart == pytest.approx([0.2, 0.2])


@settings(max_examples=100)
@given(st.integers(0, 10**6), st.floats(0.1, 300.0), st.integers(2, 4))
def test_ratios_stay_within_the_number_of_tasks(seed: int, scale: float, tasks: int) -> None:
    """g_t / q <= T, also where g underflows to 0."""
    logs_TE = tasks_of(seed, tasks, scale)[0].detach().log_softmax(-1)
    log_q_E = log_mixture([log_E[None] for log_E in logs_TE])[0]
    assert float((logs_TE - log_q_E).max()) <= math.log(tasks) + 1e-9
