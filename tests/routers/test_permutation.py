"""The learned permutation: Sinkhorn, exact assignment, schedule, freezing, round trips.

Axes: B batch, E experts.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recsys_moe.routers import Router
from recsys_moe.routers.base import RouterShape, Routing
from recsys_moe.routers.comet import CometRouter
from recsys_moe.routers.permutation import LearnedPermutation, permutation_entropy
from recsys_moe.routers.sinkhorn import sinkhorn
from recsys_moe.routers.topk import TopKRouter

M = torch.tensor([[1.0, 0], [0, 0.5]], dtype=torch.float64)


def make(num_experts: int = 4, epochs: float = 2.0) -> LearnedPermutation:
    torch.manual_seed(0)
    return LearnedPermutation(num_experts, epochs)


def routing(num_experts: int = 4, rows: int = 3) -> Routing:
    """Each row selects experts 0 and 1 with weights .75 and .25."""
    weights_BE = torch.zeros(rows, num_experts)
    weights_BE[:, 0], weights_BE[:, 1] = 0.75, 0.25
    return Routing(weights_BE, weights_BE > 0, probs_BE=weights_BE, logits_BE=weights_BE)


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        # rows: e / (e + 1) = .731059, 1 / (1 + e^.5) = .377541; columns: .731059 / 1.108600
        (1, [[0.659444, 0.301707], [0.340556, 0.698293]]),
        (20, [[0.679179, 0.320821], [0.320821, 0.679179]]),
    ],
)
def test_golden_sinkhorn(rounds: int, expected: list[list[float]]) -> None:
    plan = sinkhorn(M, rounds).exp()
    assert plan.tolist() == [pytest.approx(row, abs=1e-6) for row in expected]


def test_sinkhorn_stays_finite_at_the_lowest_temperature() -> None:
    generator = torch.Generator().manual_seed(0)
    m_EE = (torch.rand(16, 16, generator=generator) - 0.5) / 10
    plan = sinkhorn(m_EE / 1e-7, 150).exp()  # logits up to 5e5
    assert torch.isfinite(plan).all()
    torch.testing.assert_close(plan.sum(0), torch.ones(16))


def test_the_soft_phase_mixes_experts_and_the_rows_still_sum_to_1() -> None:
    module = make().train()
    module.set_epoch(0.0)
    with torch.no_grad():
        module.logits_EE.mul_(0.001)  # nearly uniform even at temperature 1e-3
    out = module(routing())
    torch.testing.assert_close(out.weights_BE.sum(-1), torch.ones(3))
    assert out.selected_BE.all() and (out.weights_BE > 0).all()
    assert out.logits_BE is None and out.probs_BE is not None


def test_the_schedule_anneals_and_ends_after_the_given_epochs() -> None:
    module = make(epochs=4.0).train()
    seen = []
    for epochs in (0.0, 1.0, 2.0, 3.99, 4.0, 5.0):
        module.set_epoch(epochs)
        seen.append((round(module.progress.item(), 4), module.is_frozen))
    assert seen == [
        *[(0.0, False), (0.25, False), (0.5, False), (0.9975, False)],
        *[(1.0, True), (1.0, True)],
    ]


@pytest.mark.parametrize(
    ("epochs", "temperature", "rounds"),
    [(0.0, 1e-3, 20), (1.0, 1e-4, 52), (2.0, 1e-5, 85), (3.0, 1e-6, 117)],  # 20 + 130 t, down
)
def test_temperature_and_rounds_follow_the_schedule(
    epochs: float, temperature: float, rounds: int
) -> None:
    """Of 4 epochs: 10^(-3 - 4t) and int(20 + 130t) at t = 0, 1/4, 1/2, 3/4."""
    module = make(epochs=4.0).train()
    module.set_epoch(epochs)
    expected_EE = sinkhorn(module.logits_EE / temperature, rounds).exp()
    torch.testing.assert_close(module.matrix(), expected_EE, rtol=1e-4, atol=1e-6)
    other_EE = sinkhorn(module.logits_EE / temperature, rounds - 5).exp()
    assert not torch.allclose(module.matrix(), other_EE, rtol=1e-4, atol=1e-6)
    with torch.no_grad():  # the matrix above is too hard to tell its temperature
        module.logits_EE.mul_(20 * temperature)
    expected_EE = sinkhorn(20 * make().logits_EE, rounds).exp()
    torch.testing.assert_close(module.matrix(), expected_EE, rtol=1e-4, atol=1e-6)


def test_the_matrix_starts_uniform_below_a_twentieth() -> None:
    largest = make(num_experts=32).logits_EE.abs().max().item()
    assert 0.049 < largest <= 0.05


def test_topk_weighs_the_entropy_of_its_permutation_as_configured() -> None:
    config = TopKRouter.Config(permutation=True, permutation_entropy=0.3)
    assert TopKRouter(config, RouterShape(3, 4)).loss_weights == {"permutation": 0.3}
    assert TopKRouter(TopKRouter.Config(), RouterShape(3, 4)).loss_weights == {}


def test_training_learns_the_matrix_until_it_is_frozen() -> None:
    module = make().train()
    module.set_epoch(0.0)
    out = module(routing())
    (out.weights_BE[:, 0].sum() + out.losses["permutation"]).backward()
    gradient = module.logits_EE.grad
    assert gradient is not None and torch.isfinite(gradient).all() and gradient.abs().sum() > 0
    module.zero_grad()
    module.set_epoch(2.0)
    (module(routing()).weights_BE[:, 0].sum()).backward()
    assert module.logits_EE.grad is not None, "zero and not missing"
    assert (module.logits_EE.grad == 0).all()


def test_a_frozen_permutation_no_longer_follows_the_matrix() -> None:
    module = make().train()
    module.set_epoch(2.0)
    frozen_EE = module.hard_EE.clone()
    with torch.no_grad():
        module.logits_EE.copy_(-module.logits_EE)
    module.set_epoch(3.0)
    assert torch.equal(module.eval().matrix(), frozen_EE)


def test_evaluation_is_hard_at_every_moment_and_keeps_the_number_selected() -> None:
    module = make().train()
    for epochs in (0.0, 1.0, 2.0):
        module.train().set_epoch(epochs)
        module.eval()
        out = module(routing())
        assert sorted(module.hard_EE.argmax(1).tolist()) == [0, 1, 2, 3]
        assert out.selected_BE.sum(-1).tolist() == [2, 2, 2]
        assert sorted(out.weights_BE[0].tolist()) == [0.0, 0.0, 0.25, 0.75]


def test_the_hard_permutation_is_the_assignment_of_the_matrix() -> None:
    """At a low temperature Sinkhorn's plan tends to the permutation of the largest sum of M."""
    module = make(num_experts=6).train()
    with torch.no_grad():
        module.logits_EE.zero_()
        module.logits_EE[torch.arange(6), torch.tensor([3, 1, 5, 0, 2, 4])] = 0.05
    module.eval()
    assert module.hard_EE.argmax(1).tolist() == [3, 1, 5, 0, 2, 4]


def test_a_diverged_matrix_still_evaluates() -> None:
    module = make().train()
    with torch.no_grad():
        module.logits_EE.fill_(torch.nan)
    hard_EE = module.eval().matrix()
    assert (hard_EE.sum(0) == 1).all() and (hard_EE.sum(1) == 1).all()


def test_the_entropy_is_0_for_a_permutation_and_largest_for_none() -> None:
    assert permutation_entropy(torch.eye(4)[[1, 0, 3, 2]]).item() == pytest.approx(0, abs=1e-4)
    uniform = torch.full((4, 4), 0.25)
    # twice 16 entries of -.25 log .25
    assert permutation_entropy(uniform).item() == pytest.approx(2 * 4 * np.log(4), abs=1e-3)


ROUTERS: list[tuple[type[Router], int]] = [(CometRouter, 5), (TopKRouter, 4)]


@pytest.mark.parametrize("epochs", [0.5, 1.5])
@pytest.mark.parametrize(("cls", "num_experts"), ROUTERS)
def test_the_state_survives_a_state_dict_before_and_after_freezing(
    cls: type[Router], num_experts: int, epochs: float
) -> None:
    def built(seed: int) -> Router:
        torch.manual_seed(seed)
        config = cls.Config(permutation=True, permutation_epochs=1.0)
        return cls(config, RouterShape(3, num_experts))

    router, other = built(0).train(), built(1)
    router.set_epoch(epochs)
    with torch.no_grad():  # moves a permutation that is not frozen, and no other
        router.permutation.logits_EE.neg_()
    other.load_state_dict(router.state_dict())
    x_BD = torch.randn(6, 3)
    assert other.permutation.is_frozen == (epochs > 1)
    assert torch.equal(router.eval()(x_BD).weights_BE, other.eval()(x_BD).weights_BE)
    assert torch.equal(router.train()(x_BD).weights_BE, other.train()(x_BD).weights_BE)


@pytest.mark.parametrize(("cls", "num_experts"), ROUTERS)
def test_all_arithmetic_is_float32_under_autocast(cls: type[Router], num_experts: int) -> None:
    torch.manual_seed(0)
    router = cls(cls.Config(permutation=True), RouterShape(3, num_experts)).train()
    x_BD = torch.randn(6, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = router(x_BD)
    full = router(x_BD)
    assert torch.equal(mixed.weights_BE, full.weights_BE)
    assert torch.equal(mixed.losses["permutation"], full.losses["permutation"])


def test_topk_promises_k_experts_only_while_its_permutation_is_hard() -> None:
    config = TopKRouter.Config(k=2, permutation=True, permutation_epochs=1.0)
    router = TopKRouter(config, RouterShape(3, 8)).train()
    assert router.max_selected == 8
    assert router.eval().max_selected == 2
    router.train().set_epoch(1.0)
    assert router.max_selected == 2
    assert (router(torch.randn(5, 3)).selected_BE.sum(-1) == 2).all()
