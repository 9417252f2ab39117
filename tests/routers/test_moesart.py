"""MOESART against golden numbers: sampler, weights, gradients, the router.

Base input throughout: logits o = [2, 1, 0, -1], g = softmax(o), L_i = dloss/dw_i.
Axes: B batch, E experts, K draws.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recsys_moe.model.penalties import trimmed_lasso
from recsys_moe.routers import RouterShape
from recsys_moe.routers.moesart import (
    MoesartRouter,
    distinct_weights,
    sample_gumbel,
    sample_sequential,
    sampled_weights,
)

O = torch.tensor([2.0, 1, 0, -1], dtype=torch.float64)  # noqa: E741
L = torch.tensor([0.5, -1, 2.5, 0.25], dtype=torch.float64)
NONE = [0.0, 0, 0, 0]


def weigh(o_E: Tensor, r: list[int], k: int, strategy: str, z: int = 0) -> Tensor:
    counts = torch.tensor([r])
    adjusted = torch.tensor([z])
    return sampled_weights(o_E.log_softmax(-1)[None], counts, adjusted, k=k, strategy=strategy)[0]


def gradient(r: list[int], k: int, strategy: str, z: int = 0) -> Tensor:
    o_E = O.clone().requires_grad_()
    (weigh(o_E, r, k, strategy, z) @ L).backward()
    return o_E.grad


CASES = [
    # strategy, r, k, z, weights, gradient (None: not tabulated)
    ("i", [1, 0, 1, 0], 2, 0, [0.880797, 0, 0.119203, 0], [-0.209987, 0, 0.209987, 0]),
    ("iii", [1, 0, 1, 0], 2, 0, [0.5, 0, 0.5, 0], NONE),
    # without replacement w_z = g_z / (1 + g_z) = .643914 / 1.643914 = .391696
    (
        "3",
        [1, 0, 1, 0],
        2,
        0,
        [0.391696, 0, 0.608304, 0],
        [-0.169689, 0.112884, 0.041528, 0.015277],
    ),
    (
        "3",
        [1, 0, 1, 0],
        2,
        2,
        [0.919841, 0, 0.080159, 0],
        [-0.094956, -0.034932, 0.134616, -0.004728],
    ),
    ("3", [1, 1, 1, 0], 3, 0, [0.391696, 0.304152, 0.304152, 0], None),
    (
        "3",
        [1, 1, 1, 0],
        3,
        1,
        [0.404242, 0.191516, 0.404242, 0],
        [0.249255, -0.295398, 0.033733, 0.012410],
    ),
    ("3", [1, 1, 1, 0], 3, 2, [0.459921, 0.459921, 0.080159, 0], None),
    ("i", [2, 1, 1, 0], 4, 0, [0.665241, 0.244728, 0.090031, 0], None),
    ("ii", [2, 1, 1, 0], 4, 0, [0.798973, 0.146963, 0.054065, 0], None),
    ("iii", [2, 1, 1, 0], 4, 0, [0.5, 0.25, 0.25, 0], NONE),
    (
        "3",
        [2, 1, 1, 0],
        4,
        0,
        [0.658906, 0.170547, 0.170547, 0],
        [-0.020007, 0.013310, 0.004896, 0.001801],
    ),
    ("3", [2, 1, 1, 0], 4, 1, [0.538989, 0.191516, 0.269495, 0], None),
    ("3", [2, 1, 1, 0], 4, 2, [0.613227, 0.306614, 0.080159, 0], None),
    ("3", [2, 0, 0, 0], 2, 0, [1.0, 0, 0, 0], NONE),
]


@pytest.mark.parametrize(("strategy", "r", "k", "z", "weights", "grad"), CASES)
def test_golden_weights_and_gradients(
    strategy: str, r: list[int], k: int, z: int, weights: list[float], grad: list[float] | None
) -> None:
    assert weigh(O, r, k, strategy, z).tolist() == pytest.approx(weights, abs=1e-6)
    if grad is not None:
        assert gradient(r, k, strategy, z).tolist() == pytest.approx(grad, abs=1e-6)


def test_an_underflowing_expert_leaves_finite_gradients() -> None:
    o_E = torch.tensor([0.0, -200.0, 1.0, -300.0], requires_grad=True)
    weigh(o_E, [1, 0, 1, 0], 2, "3", 0)[0].backward()
    assert torch.isfinite(o_E.grad).all()


# --- the sampler of the supplement's Algorithm 1

G = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1], [1, 0, 0, 0], [0, 0.5, 0.5, 0]])
U = torch.tensor([[0.35, 0.05, 0.999, 0.0], [0.43, 0.5, 0.2, 0.9], [0.9, 0.1, 0.3, 0.3]])


@pytest.mark.parametrize(
    ("k", "replacement", "counts"),
    [
        (2, False, [[0, 0, 1, 1], [1, 0, 1, 0], [1, 0, 0, 0], [0, 1, 1, 0]]),
        (2, True, [[0, 0, 2, 0], [2, 0, 0, 0], [2, 0, 0, 0], [0, 1, 1, 0]]),
        (3, False, [[0, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0], [0, 1, 1, 0]]),
        (3, True, [[0, 0, 2, 1], [3, 0, 0, 0], [3, 0, 0, 0], [0, 2, 1, 0]]),
    ],
)
def test_sequential_sampler_golden(k: int, replacement: bool, counts: list[list[int]]) -> None:
    """Row 3 has u1 = 0: the comparison u < C is strict, so its massless expert 0 is not drawn."""
    assert sample_sequential(G, U[:k], replacement).tolist() == counts


def test_a_uniform_above_the_rounded_total_takes_the_last_possible_expert() -> None:
    """C = [.3, .6, .9999999] and u = .99999994: no index has u < C; the answer is 2, not 0."""
    mass = torch.tensor([[0.3, 0.3, 0.3999999, 0.0]])
    uniform = torch.tensor([[0.99999994]])
    assert sample_sequential(mass, uniform, False).tolist() == [[0, 0, 1, 0]]


def test_gumbel_never_draws_an_expert_whose_probability_underflows() -> None:
    drawn, possible = sample_gumbel(torch.tensor([[0.0, 1.0, 0.0, 0.0]]), torch.rand(1, 4), k=2)
    assert drawn[0, 0] == 1 and possible.tolist() == [[True, False]]


def test_gumbel_draws_a_possible_expert_whose_random_number_is_0() -> None:
    """-log(0) is infinite and would make its key 0, which marks an impossible expert."""
    drawn, possible = sample_gumbel(torch.tensor([[0.3, 0.7]]), torch.zeros(1, 2), k=2)
    assert drawn.tolist() == [[1, 0]] and possible.tolist() == [[True, True]]


@pytest.mark.parametrize("strategy", ["i", "ii", "iii", "3"])
@given(st.integers(2, 5), st.integers(0, 10**6))
def test_weights_of_distinct_draws_equal_the_general_ones_with_gradients(
    strategy: str, k: int, seed: int
) -> None:
    """Expert 5 of row 0 is impossible, so with k = 5 or so a row has fewer draws than k."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(9, 6, generator=g, dtype=torch.float64)
    logits[0, 2:] = -900.0
    logits.requires_grad_()
    log_probs = logits.log_softmax(-1)
    noise = torch.rand(9, 6, generator=g, dtype=torch.float64)
    drawn, possible = sample_gumbel(log_probs.exp().detach(), noise, k)
    assert possible[0].sum() == min(k, 2)
    column = (torch.rand(9, generator=g) * possible.sum(-1)).long()
    weights, selected = distinct_weights(log_probs, drawn, possible, column, strategy=strategy)
    counts = torch.zeros(9, 6, dtype=torch.long).scatter(-1, drawn, possible.long())
    adjusted = drawn.gather(-1, column[:, None])[:, 0]
    expected = sampled_weights(log_probs, counts, adjusted, k=k, strategy=strategy)
    torch.testing.assert_close(weights, expected)
    assert torch.equal(selected, counts > 0)
    probe = torch.randn(9, 6, generator=g, dtype=torch.float64)
    ours, theirs = (
        torch.autograd.grad((w * probe).sum(), logits, retain_graph=True)[0]
        for w in (weights, expected)
    )
    torch.testing.assert_close(ours, theirs)


SETS = {  # set probabilities without replacement, base g: sum over orders of g_i g_j / (1 - g_i)
    (0, 1): 0.628239,
    (0, 2): 0.219054,
    (0, 3): 0.079299,
    (1, 2): 0.049665,
    (1, 3): 0.017797,
    (2, 3): 0.005947,
}


@pytest.mark.parametrize("sampler", ["gumbel", "sequential"])
def test_both_samplers_follow_the_law_without_replacement(sampler: str) -> None:
    rows = 200_000
    log_probs = O.float().log_softmax(-1).expand(rows, -1)
    generator = torch.Generator().manual_seed(3)
    if sampler == "gumbel":
        drawn, _ = sample_gumbel(log_probs.exp(), torch.rand(rows, 4, generator=generator), 2)
        counts = torch.zeros(rows, 4, dtype=torch.long).scatter_add(-1, drawn, drawn * 0 + 1)
    else:
        uniforms = torch.rand(2, rows, generator=generator)
        counts = sample_sequential(log_probs.exp(), uniforms, False)
    assert (counts.sum(-1) == 2).all() and counts.max() == 1
    for (i, j), probability in SETS.items():
        share = (counts[:, i] * counts[:, j]).double().mean().item()
        # five standard errors of a share of 200,000 draws
        assert share == pytest.approx(probability, abs=5 * (probability / rows) ** 0.5)


# --- the router


def router(**settings: object) -> MoesartRouter:
    """Gate = identity on 4 inputs, so that the input is the logits."""
    config = MoesartRouter.Config(**{"temperature": 1.0, **settings})
    made = MoesartRouter(config, RouterShape(4, 4))
    with torch.no_grad():
        made.gate.weight.copy_(torch.eye(4))
    return made


@pytest.mark.parametrize("training", [True, False])
def test_the_temperature_divides_the_logits_in_training_and_evaluation(training: bool) -> None:
    routing = router(temperature=0.5).train(training)(O.float()[None])
    expected = [0.864955, 0.117059, 0.015842, 0.002144]  # softmax([4, 2, 0, -2])
    assert routing.probs_BE[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_sampled_inference_draws_from_the_seeded_stream() -> None:
    sampled = router(inference="sampled").eval()
    x_BD = O.float().expand(50, -1)
    draws_of = []
    for seed in (1, 1, 2):
        sampled.stream.reseed(seed)
        draws_of.append(sampled(x_BD).selected_BE)
    assert torch.equal(draws_of[0], draws_of[1]) and not torch.equal(draws_of[0], draws_of[2])
    assert (draws_of[0].sum(-1) == 2).all()


@pytest.mark.parametrize("sampler", ["gumbel", "sequential"])
def test_training_weights_average_to_the_enumerated_expectation(sampler: str) -> None:
    """E[w] by enumeration for base g, k = 2, without replacement, eq. (3)."""
    trained = router(sampler=sampler).train()
    weights_BE = trained(O.float().expand(200_000, -1)).weights_BE
    expected = [0.574597, 0.289163, 0.100592, 0.035649]
    assert weights_BE.mean(0).tolist() == pytest.approx(expected, abs=5e-3)


def test_with_replacement_an_expert_drawn_twice_is_visited_once() -> None:
    routing = router(replacement=True).train()(O.float().expand(1000, -1))
    visited = routing.selected_BE.sum(-1)
    assert visited.min() == 1 and visited.max() == 2
    torch.testing.assert_close(routing.weights_BE.sum(-1), torch.ones(1000))


def test_trimmed_lasso_gradient_golden() -> None:
    """do = g (1[tail] - tail mass), k = 2: e.g. -.643914 * .119203 = -.076756."""
    o_E = O.clone().requires_grad_()
    trimmed_lasso(o_E.softmax(-1)[None], 2).backward()
    assert o_E.grad.tolist() == pytest.approx([-0.076756, -0.028237, 0.076756, 0.028237], abs=1e-6)


def test_the_adjusted_expert_is_one_of_the_possible_ones() -> None:
    """k = 3 of 4 and two possible: an adjusted expert beyond them would leave equal weights.

    With g = (1/2, 1/2) the adjusted expert weighs (1/2) / (1/2 + 1/2): log(k - 1) = log 2 as well,
    so the inputs are (1, 0) and the weights differ from 1/2 in every row.
    """
    drawn = router(k=3).train()(torch.tensor([[1.0, 0.0, -900.0, -900.0]]).expand(200, -1))
    g = 1 / (1 + math.exp(-1))  # of expert 0; the correction of the other is 1 / (k - 1) = 1/2
    expected = {round(w, 4) for w in (g / (g + 0.5), 0.5 / (0.5 + 1 - g))}
    assert {round(w, 4) for w in drawn.weights_BE[:, 0].tolist()} == expected


def test_the_strategy_without_a_gradient_says_so() -> None:
    assert "is iii: the tasks give" in MoesartRouter.Config(strategy="iii").remarks[0]
    assert MoesartRouter.Config().remarks == []
