"""Joint choice: tasks choose among shared experts, and what their estimates are in the mean.

Axes: B batch, T tasks, E experts, D input width.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError
from recsys_moe.model.experts import Experts
from recsys_moe.model.moe import MoE, naive_moe
from recsys_moe.routers import Router, RouterShape, Routing, find_router, router
from recsys_moe.routers.joint import Shared, log_mixture, most_selected, route, route_task, within
from recsys_moe.routers.moesart import sampled_weights
from recsys_moe.routers.systematic import inclusion_probabilities
from research.paper.bias import draws
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
    kind, given = find_router(settings["name"]), {"joint": 3, "k": 2, **settings}
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

ORDERS = list(itertools.permutations(range(4)))


def tasks_of(seed: int, tasks: int, scale: float) -> tuple[Tensor, Tensor]:
    """Logits and values of the experts (T, 4) of tasks that want different ones."""
    generator = torch.Generator().manual_seed(seed)
    both = torch.randn(2, tasks, 4, generator=generator, dtype=torch.float64)
    return (scale * both[0]).requires_grad_(), both[1]


def shared_sets(logits_TE: Tensor, count: int, order: Any) -> list[tuple[float, Shared]]:
    """Every set of shared experts, with the line in one order, and its probability."""
    log_q_E = log_mixture([logits_E[None] for logits_E in logits_TE])[0]
    inclusion_E = inclusion_probabilities(log_q_E[None], count)[0]
    drawn = outcomes(inclusion_E, torch.tensor(order))
    return [(p, Shared(chosen_E[None], inclusion_E.log()[None])) for p, chosen_E in drawn]


@pytest.mark.parametrize(("tasks", "joint", "k"), [(2, 3, 2), (2, 2, 2), (3, 3, 1), (2, 4, 2)])
@pytest.mark.parametrize("scale", [0.0, 1.0, 4.0])
def test_pps_is_unbiased_for_every_task_and_its_gradient(
    tasks: int, joint: int, k: int, scale: float
) -> None:
    """sum over both draws of P(draw) sum_i w_ti f_ti = sum_i g_ti f_ti, w = g / (pi pi').

    For every order of the first line; weights sum to the number of tasks at most.
    """
    logits_TE, values_TE = tasks_of(k, tasks, scale)
    probs_TE = logits_TE.softmax(-1)
    dense_T = (probs_TE * values_TE).sum(-1)
    (dense_TE,) = torch.autograd.grad(dense_T.sum(), logits_TE, retain_graph=True)
    for order in ORDERS[::5]:
        means = [torch.zeros((), dtype=torch.float64) for _ in range(tasks)]
        for chance, shared in shared_sets(logits_TE.detach(), joint, order):
            inclusion_E = shared.log_inclusion_BE[0].exp()
            for t, (logits_E, values_E) in enumerate(zip(logits_TE, values_TE, strict=True)):
                own_E = inclusion_probabilities(within(logits_E.detach()[None], shared), k)[0]
                for again, drawn_E in outcomes(own_E, torch.tensor(order)):
                    weights_D = probs_TE[t, drawn_E] / (inclusion_E * own_E)[drawn_E]
                    assert float(weights_D.detach().sum()) <= tasks + 1e-9
                    means[t] = means[t] + chance * again * (weights_D @ values_E[drawn_E])
        torch.testing.assert_close(torch.stack(means), dense_T)
        (sampled_TE,) = torch.autograd.grad(sum(means), logits_TE, retain_graph=True)  # type: ignore[arg-type]
        torch.testing.assert_close(sampled_TE, dense_TE)


def test_draws_of_the_pps_router_are_unbiased_for_both_tasks() -> None:
    """10^5 draws: means within 5 standard errors of each task's g."""
    rows, routers = 100_000, make(name="pps")
    for routing in route(routers, batch(1).expand(rows, -1), None):
        error_E = (routing.weights_BE.mean(0) - routing.probs_BE[0]).abs()  # type: ignore[index]
        assert (error_E <= 5 * routing.weights_BE.std(0) / rows**0.5 + 1e-6).all()


G = torch.tensor([[0.6, 0.2, 0.1, 0.1], [0.1, 0.2, 0.1, 0.6]], dtype=torch.float64)
"""Two tasks that want different experts; q = (.35, .2, .1, .35)."""


def law(logits_TE: Tensor, joint: int, task: int) -> dict[tuple[int, ...], float]:
    """Probability of each pair of experts that a task draws among the shared ones."""
    found: dict[tuple[int, ...], float] = {}
    for order in ORDERS:
        for chance, shared in shared_sets(logits_TE, joint, order):
            probs_E = within(logits_TE[task][None], shared).softmax(-1)[0]
            for drawn, again in draws(probs_E, 2, replacement=False):
                if shared.chosen_BE[0, list(drawn)].all():
                    found[drawn] = found.get(drawn, 0) + chance * again / len(ORDERS)
    return found


def test_draws_of_the_moesart_router_have_the_law_that_is_enumerated() -> None:
    """10^5 draws of each task: pairs within 5 standard errors of their probabilities."""
    rows, kind = 100_000, find_router("moesart")
    routers = []
    for task in range(2):
        config = kind.Config(name="moesart", joint=3, k=2, temperature=1.0)
        one = kind(config, RouterShape(D, 4, task=task, num_tasks=2))
        one.gate.weight.data.zero_()
        one.gate.bias.data.copy_(G[task].log())
        one.stream.reseed(task)
        routers.append(one)
    for task, routing in enumerate(route(routers, torch.zeros(rows, D), None)):
        expected: dict[tuple[int, ...], float] = {}
        for drawn, chance in law(G.log(), 3, task).items():
            pair = tuple(sorted(drawn))
            expected[pair] = expected.get(pair, 0) + chance
        assert sum(expected.values()) == pytest.approx(1)
        for pair, chance in expected.items():
            share = float(routing.selected_BE[:, list(pair)].all(1).double().mean())
            assert abs(share - chance) <= 5 * (chance * (1 - chance) / rows) ** 0.5


def mean_weights(pairs: dict[tuple[int, ...], float], g_E: Tensor) -> Tensor:
    """E[w] of eq. (3) over the pairs and both choices of z."""
    total_E = torch.zeros_like(g_E)
    for drawn, chance in pairs.items():
        counts = torch.tensor([[int(i in drawn) for i in range(4)]])
        for z in drawn:
            given: dict[str, Any] = {"k": 2, "strategy": "3"}
            weights_BE = sampled_weights(g_E.log()[None], counts, torch.tensor([z]), **given)
            total_E = total_E + chance / 2 * weights_BE[0]
    return total_E


def test_where_all_experts_are_shared_moesart_draws_as_separate_choices_do() -> None:
    """pi = 1 then, so that each task draws from its own g: the estimate is eq. (3)'s."""
    for task, g_E in enumerate(G):
        apart = {pair: p for pair, p in draws(g_E, 2, replacement=False)}
        assert law(G.log(), 4, task) == pytest.approx(apart)


@pytest.mark.parametrize(("joint", "bias"), [(2, 0.2373), (3, 0.0317), (4, 0.0596)])
def test_bias_of_eq_3_by_enumeration(joint: int, bias: float) -> None:
    """|E[w] - g|_2 of both tasks; with 4 of 4 shared it is that of separate choices.

    Two shared experts leave nothing to choose, and each task weighs both; a third suffices.
    """
    found = [mean_weights(law(G.log(), joint, task), G[task]) - G[task] for task in (0, 1)]
    assert [float(one.norm()) for one in found] == pytest.approx([bias, bias], abs=6e-5)


# --- the choice


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("given", KINDS, ids=str)
@pytest.mark.parametrize("tasks", [2, 3])
def test_tasks_choose_k_of_the_shared_experts(
    given: dict[str, Any], tasks: int, training: bool
) -> None:
    routers = [one.train(training) for one in make(tasks, **given)]
    routings = route(routers, batch(), None)
    if given.get("inference") == "dense" and not training:
        assert all(routing.selected_BE.all() for routing in routings)
        return
    shared_BE = routings[0].shared_BE
    assert shared_BE is not None and (shared_BE.sum(-1) == 3).all()
    for one, routing in zip(routers, routings, strict=True):
        assert torch.equal(routing.shared_BE, shared_BE)  # type: ignore[arg-type]
        assert not (routing.selected_BE & ~shared_BE).any()
        assert (routing.selected_BE.sum(-1) <= 2).all() and (routing.weights_BE >= 0).all()
        assert (routing.weights_BE[~routing.selected_BE] == 0).all()
        assert (routing.weights_BE.sum(-1) <= one.max_sum + 1e-5).all()
    assert not torch.equal(routings[0].selected_BE, routings[1].selected_BE)


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_shares_the_set_with_the_most_of_all_tasks(name: str) -> None:
    """Against every set of three: sum over tasks of g; then each task's two largest there."""
    routings = route([one.eval() for one in make(3, name=name)], batch(), None)
    probs_TBE = probabilities(routings).detach()
    sets = list(itertools.combinations(range(E), 3))
    best = torch.stack([probs_TBE.sum(0)[:, list(one)].sum(-1) for one in sets]).argmax(0)
    for routing, probs_BE in zip(routings, probs_TBE, strict=True):
        for row, number in enumerate(best.tolist()):
            kept = sorted(sets[number], key=lambda i: -float(probs_BE[row, i]))[:2]
            chosen = probs_BE[row, kept] if name != "moesart" else torch.ones(2)
            weights = torch.zeros(E).index_copy(0, torch.tensor(kept), chosen / chosen.sum())
            torch.testing.assert_close(routing.weights_BE[row], weights)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("given", KINDS, ids=str)
def test_a_single_task_is_as_without_it_bit_for_bit(given: dict[str, Any], training: bool) -> None:
    found, apart = (
        route([one.train(training) for one in make(1, **given, joint=joint)], batch(), None)[0]
        for joint in (3, 0)
    )
    assert torch.equal(found.weights_BE, apart.weights_BE)
    assert torch.equal(found.selected_BE, apart.selected_BE)


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_with_all_experts_shared_is_that_of_separate_choices(name: str) -> None:
    found, apart = (
        route([one.eval() for one in make(name=name, joint=joint)], batch(), None)
        for joint in (E, 0)
    )
    for one, other in zip(found, apart, strict=True):
        assert torch.equal(one.weights_BE, other.weights_BE)


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


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("joint", "most"), [(2, 2), (3, 3), (4, 4), (8, 4)])
def test_static_shapes_hold_what_tasks_visit_of_shared_experts(
    name: str, joint: int, most: int
) -> None:
    """Two tasks with k = 2 visit at most min(J, 2 + 2) experts: so large are the shapes."""
    torch.manual_seed(0)
    kind, rows, experts = find_router(name), 512, Experts(16, D, H, dropout=0.0)
    shapes = [RouterShape(D, 16, task=task, num_tasks=2) for task in range(2)]
    routers = [kind(kind.Config(k=2, joint=joint), shape) for shape in shapes]
    layer = MoE(experts, routers, "static", seed=3)
    x_BD = batch(rows)
    layer.reseed(5)
    mixed_BTH, _ = layer(x_BD)
    layer.reseed(5)
    weights_BTE = torch.stack([r.weights_BE for r in route(layer.routers, x_BD, None)], 1)
    naive_BTH = naive_moe(x_BD, weights_BTE, experts.kernel_EDH, experts.bias_EH)
    torch.testing.assert_close(mixed_BTH, naive_BTH, rtol=1e-5, atol=1e-5)
    assert most_selected(layer.routers) == most
    assert int((weights_BTE != 0).any(1).sum(-1).max()) == most


def test_joint_routers_are_built_alike() -> None:
    routers = [*make(name="moesart")[:1], *make(name="moesart", joint=0)[1:]]
    with pytest.raises(ConfigError, match=r"with joint must be of one kind .* got Moesart"):
        MoE(Experts(E, D, H, dropout=0.0), routers)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "moesart", "joint": 1}, r"joint must be 0 or in .*k=2.*=6, got 1; change"),
        ({"name": "pps", "joint": 7}, r"joint must be 0 or in .*k=2.*=6, got 7; change"),
        ({"name": "topk", "joint": 3, "permutation": True}, "joint must be 0 with .*true, got 3"),
    ],
)
def test_what_cannot_be_shared_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        router(input_dim=D, num_experts=E, **given)


def test_the_load_penalty_is_refused() -> None:
    raw = {"model": {"router": {"name": "topk", "joint": 3}}, "penalties": {"load": 0.1}}
    with pytest.raises(ConfigError, match=r"penalties\.load .* unless model\.router\.joint=0"):
        parse_config(raw)
