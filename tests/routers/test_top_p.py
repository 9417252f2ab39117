"""Top-p routing against golden numbers, and the controller that moves p.

Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from recsys_moe.routers import RouterShape
from recsys_moe.routers.top_p import P_RANGE, TopPRouter, fewest_reaching, standardised

PROBS = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.125, 0.125, 0.25, 0.5]], dtype=torch.float64)


def identity_router(**settings: object) -> TopPRouter:
    """Its logits are its input."""
    settings = {"normalize": False, **settings}
    router = TopPRouter(TopPRouter.Config(**settings), RouterShape(4, 4)).double()
    with torch.no_grad():
        router.gate.weight.copy_(torch.eye(4))
    return router.train()


def alone(values: Tensor) -> Tensor:
    return values


@pytest.mark.parametrize(
    ("p", "kept"),
    [
        (0.001, [[0], [3]]),  # always one
        (0.5, [[0], [3]]),  # reached exactly
        (0.51, [[0, 1], [2, 3]]),
        (0.75, [[0, 1], [2, 3]]),
        (0.8, [[0, 1, 2], [0, 2, 3]]),  # of equal ones the lower index
        (1.0, [[0, 1, 2, 3], [0, 1, 2, 3]]),
    ],
)
def test_the_fewest_experts_that_reach_p_are_kept(p: float, kept: list[list[int]]) -> None:
    """Cumulated from the largest: .5, .75, .875, 1."""
    selected_BE = fewest_reaching(PROBS, torch.tensor(p))
    assert [row.nonzero()[:, 0].tolist() for row in selected_BE] == kept


def test_weights_are_the_kept_probabilities_divided_by_their_sum() -> None:
    """p = .6 keeps .5 and .25: 2/3 and 1/3."""
    routing = identity_router(p_start=0.6)(PROBS.log())
    expected = [[2 / 3, 1 / 3, 0, 0], [0, 0, 1 / 3, 2 / 3]]
    torch.testing.assert_close(routing.weights_BE, torch.tensor(expected, dtype=torch.float64))
    assert routing.selected_BE.sum().item() == 4


def test_normalised_logits_do_not_depend_on_scale_and_shift() -> None:
    """[0, 0, 0, 4] has mean 1 and deviation sqrt(3): [-1, -1, -1, 3] / sqrt(3)."""
    logits_BE = torch.tensor([[0.0, 0, 0, 4], [7, 7, 7, 47], [5, 5, 5, 5]], dtype=torch.float64)
    third = 1 / math.sqrt(3)
    expected = [[-third, -third, -third, 3 * third]] * 2 + [[0.0] * 4]
    found = standardised(logits_BE)
    torch.testing.assert_close(
        found, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0
    )
    router = identity_router(normalize=True)
    with torch.no_grad():
        router.scale.fill_(2.0)
    torch.testing.assert_close(router(logits_BE).logits_BE, 2 * found)


def test_a_step_moves_p_by_the_error_and_by_the_sum_of_errors() -> None:
    """4 experts, k = 2, p = .6: rows of PROBS keep 2, uniform rows .25 * 3 = .75 >= .6: 3.

    Two rows with 3 each: e = (2 - 3) / 4 = -.25; p = .6 + .1 * -.25 + .02 * -.25 = .57. Again,
    still 3: sum -.5, p = .6 - .025 - .01 = .565. Then nobody counted: e = 0, p = .6 - .01 = .59.
    """
    router = identity_router(p_start=0.6)
    seen = []
    for _ in range(2):
        router(torch.zeros(2, 4).double())
        router.on_step_end(alone)
        seen.append(router.p.item())
    router.eval()(torch.zeros(2, 4).double())
    router.on_step_end(alone)
    assert [*seen, router.p.item()] == pytest.approx([0.57, 0.565, 0.59])


def test_two_passes_and_all_processes_are_one_step() -> None:
    """Own: 2 rows with 2 of p = .6 and 1 with 3; of the others 5 rows with 1: 12 in 8 rows, so
    1.5 each. e = .5 / 4 = .125, p = .6 + .12 * .125 = .615."""
    router = identity_router(p_start=0.6)
    router(PROBS.log())
    router(torch.zeros(1, 4).double())
    assert router.p.item() == pytest.approx(0.6)
    router.on_step_end(lambda counted: counted + torch.tensor([5, 5]))
    assert router.p.item() == pytest.approx(0.615)


def test_p_stays_in_its_range_and_comes_back() -> None:
    """1 expert each for k = 2 of 4: e = .25, many times; the sum stops at 1 / integral = 1 and p at
    1. With 4 each e = -.5: sums .5 and 0, p = 1 and .5; then -.5 and -1: p = .001."""
    router = identity_router(integral=1.0, proportional=0.0, p_start=0.5)
    for _ in range(50):
        router.on_step_end(lambda _: torch.tensor([2, 2]))
    assert (router.p.item(), router.error_sum.item()) == (P_RANGE[1], 1.0)
    seen = []
    for _ in range(4):
        router.on_step_end(lambda _: torch.tensor([8, 2]))
        seen.append(router.p.item())
    assert seen == pytest.approx([1.0, 0.5, P_RANGE[0], P_RANGE[0]])


def test_training_ends_near_k_experts_per_row() -> None:
    torch.manual_seed(0)
    router = TopPRouter(TopPRouter.Config(k=3), RouterShape(8, 16)).train()
    x_BD = torch.randn(512, 8)
    counts = []
    for _ in range(600):
        counts.append(router(x_BD).selected_BE.double().sum(-1).mean().item())
        router.on_step_end(alone)
    assert abs(counts[0] - 3) > 0.3 and counts[-1] == pytest.approx(3, abs=0.1)
    spread = router.eval()(x_BD).selected_BE.sum(-1)
    assert spread.min() < 3 < spread.max()


def test_gains_of_0_leave_p_as_it_is() -> None:
    router = identity_router(proportional=0.0, integral=0.0, p_start=0.4)
    router(PROBS.log())
    router.on_step_end(alone)
    assert router.p.item() == pytest.approx(0.4)


def test_the_controller_travels_with_the_weights() -> None:
    router, other = identity_router(p_start=0.6), identity_router()
    router(torch.zeros(2, 4).double())
    router.on_step_end(alone)
    other.load_state_dict(copy.deepcopy(router.state_dict()))
    assert torch.equal(other.p, router.p) and torch.equal(other.error_sum, router.error_sum)
    assert router.error_sum.item() != 0
