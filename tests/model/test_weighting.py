"""Methods that weigh tasks: one step worked by hand, and what holds for any losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from recsys_moe.model.weighting import METHODS, Step, Weighting
from recsys_moe.model.weighting.base import OwnAdam, task_gram
from recsys_moe.model.weighting.famo import FAMOWeighting
from recsys_moe.model.weighting.gradnorm import GradNormWeighting
from recsys_moe.model.weighting.pcgrad import PCGradWeighting, orders, projected
from recsys_moe.model.weighting.uncertainty import UncertaintyWeighting

LR = 0.025
"""Of all methods; the first step of Adam moves by it, whatever the gradient but 0."""


class Plane(nn.Module):
    """Two parameters; the loss of task i is |theta - centre_i|^2, its gradient 2 (theta - c_i)."""

    def __init__(self, *start: float) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def losses(self, centres: Sequence[Sequence[float]]) -> Tensor:
        apart = [self.theta - torch.tensor(one, dtype=torch.float64) for one in centres]
        return torch.stack([one.square().sum() for one in apart])


def step(losses_T: Tensor, present: Sequence[bool] | None = None, seed: int = 0) -> Step:
    there = torch.ones(len(losses_T), dtype=torch.bool) if present is None else present
    return Step(losses_T, torch.as_tensor(there), lambda own: own, seed)


def method(name: str, units: Sequence[float] = (1.0, 1.0), **settings: Any) -> Weighting:
    return METHODS[name](METHODS[name].Config(name=name, **settings), units)


def test_uncertainty_divides_by_the_variance_and_moves_it() -> None:
    weighting = method("uncertainty", units=(0.5, 1.0))
    assert isinstance(weighting, UncertaintyWeighting)
    model = Plane(0.0, 0.0)
    losses = model.losses([(3.0, 0.0), (0.0, 0.5)])  # 9 and 0.25
    # s = 0: factors u exp(-0) = 0.5, 1; gradients 1/2 - 0.5 * 9 = -4, 1/2 - 1 * 0.25 = 0.25
    assert weighting(step(losses), model).tolist() == [0.5, 1.0]
    assert weighting.log_variance_T.tolist() == pytest.approx([LR, -LR])
    again = weighting(step(losses), model).tolist()
    assert again == pytest.approx([0.5 * math.exp(-LR), math.exp(LR)])


@pytest.mark.parametrize("unit", [0.5, 1.0])
def test_at_the_optimum_of_uncertainty_every_loss_weighs_one_half(unit: float) -> None:
    """sigma^2 = 2 u L, so u L / sigma^2 = 1/2, here of losses 25 times apart."""
    weighting = method("uncertainty", units=(unit, 1.0))
    losses = torch.tensor([5.0, 0.2], dtype=torch.float64)
    for _ in range(2000):
        factors = weighting(step(losses), nn.Identity())
    assert (factors * losses).tolist() == pytest.approx([0.5, 0.5], abs=1e-3)


def test_gradnorm_takes_one_step_of_its_loss() -> None:
    weighting = method("gradnorm", alpha=1.0)
    assert isinstance(weighting, GradNormWeighting)
    model = Plane(0.0, 0.0)
    near = [(1.0, 0.0), (0.0, 3.0)]
    # Norms 2 |theta - c| = 2 and 6, mean 4; at first all rates are 1, so the targets are 4 and 4,
    # and the gradients 2 sign(2 - 4) = -2 and 6 sign(6 - 4) = 6: factors 1.025 and 0.975, sum 2.
    assert weighting(step(model.losses(near)), model).tolist() == [1.0, 1.0]
    assert weighting.factor_T.tolist() == pytest.approx([1 + LR, 1 - LR])
    with torch.no_grad():
        model.theta.copy_(torch.tensor([0.0, 2.0]))
    # Losses 5 of 1 and 1 of 9: ratios 5 and 1/9, mean 23/9, rates 45/23 and 1/23. Norms 2 sqrt(5)
    # and 2: G = 4.584 and 1.95, mean 3.267, targets 6.392 and 0.142: the first gains, and Adam's
    # second step goes the same way.
    weighting(step(model.losses(near)), model)
    first, second = weighting.factor_T.tolist()
    assert first > 1 + LR and first + second == pytest.approx(2)
    own = torch.tensor([1 + LR, 1 - LR]) * torch.tensor([2 * math.sqrt(5), 2.0])
    target = own.mean() * torch.tensor([45 / 23, 1 / 23])
    assert own.tolist() == pytest.approx([4.584, 1.95], abs=1e-3)
    assert target.tolist() == pytest.approx([6.392, 0.142], abs=1e-3)


def test_pcgrad_projects_two_conflicting_gradients() -> None:
    model = Plane(0.0, 0.0)
    losses = model.losses([(-0.5, 0.0), (0.5, -0.5)])  # gradients (1, 0) and (-1, 1)
    assert task_gram(step(losses), [model.theta]).tolist() == [[1.0, -1.0], [-1.0, 2.0]]
    # g1 - (-1 / 2) g2 = (0.5, 0.5) and g2 - (-1 / 1) g1 = (0, 1): the sum is 2 g1 + 1.5 g2.
    factors = method("pcgrad")(step(losses), model)
    assert factors.tolist() == [2.0, 1.5]
    (sum_,) = torch.autograd.grad((factors * losses).sum(), model.theta)
    assert sum_.tolist() == [0.5, 1.5]


def test_pcgrad_leaves_gradients_that_agree() -> None:
    model = Plane(0.0, 0.0)
    losses = model.losses([(-0.5, 0.0), (-0.5, -0.5)])
    assert method("pcgrad")(step(losses), model).tolist() == [1.0, 1.0]


def test_famo_weighs_by_logarithms_and_then_by_what_fell() -> None:
    weighting = method("famo", decay=0.0)
    assert isinstance(weighting, FAMOWeighting)
    # z = 1/2, 1/2; z / L = 1/8, 1/2, sum 5/8: factors 0.2, 0.8
    losses = torch.tensor([4.0, 1.0], dtype=torch.float64)
    assert weighting(step(losses), nn.Identity()).tolist() == pytest.approx([0.2, 0.8])
    # The first fell by log 2, the second not: J^T d = (1/2 (log 2 - log 2 / 2), ...) = +-0.173
    weighting.on_step_end(torch.tensor([2.0, 1.0]))
    assert weighting.logit_T.tolist() == pytest.approx([-LR, LR])


def test_famo_s_gradient_is_the_jacobian_s() -> None:
    """The first moments of Adam are 0.1 times the gradient; here against autograd."""
    weighting = method("famo", units=(1.0,) * 3, decay=0.1)
    assert isinstance(weighting, FAMOWeighting)
    weighting.logit_T.copy_(torch.tensor([0.3, -0.2, 0.5]))
    before, after = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 1.9, 3.3])
    logits = weighting.logit_T.clone().requires_grad_()
    weighting(step(before), nn.Identity())
    weighting.on_step_end(after)
    fallen = (before.log() - after.log()).double()
    (gradient,) = torch.autograd.grad(logits.softmax(0), logits, fallen)
    wanted = 0.1 * (gradient + 0.1 * logits.detach())
    assert weighting.adam.first_T.tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


def test_adam_is_torch_s_and_leaves_alone_what_does_not_move() -> None:
    ours, values = OwnAdam(2, 0.1), torch.tensor([1.0, 1.0], dtype=torch.float64)
    theirs = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([theirs], lr=0.1)
    for gradient in (0.3, -2.0, 0.01):
        ours.move(values, torch.tensor([gradient, 5.0]), torch.tensor([True, False]))
        theirs.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
    assert values.tolist() == pytest.approx([theirs.item(), 1.0])


SIZES = st.floats(-5, 5).filter(lambda size: size == 0 or abs(size) > 1e-3)
PAIR = st.tuples(SIZES, SIZES)
LOSSES = st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3)


@given(PAIR, PAIR)
def test_after_pcgrad_no_conflict_of_two_tasks_remains(
    one: tuple[float, float], other: tuple[float, float]
) -> None:
    gradients = torch.tensor([one, other], dtype=torch.float64)
    gram = gradients @ gradients.T
    for own in (0, 1):
        order: list[list[int]] = [[], []]
        order[own] = [1 - own]
        factors = torch.tensor(projected(gram.tolist(), order), dtype=torch.float64)
        factors[1 - own] -= 1.0  # the other task's own gradient is in the sum
        left = factors @ gradients
        assert left @ gradients[1 - own] >= -1e-9 * gram.diagonal().max()


@given(st.lists(PAIR, min_size=3, max_size=4), st.integers(0, 99))
def test_pcgrad_is_algorithm_1(given_: list[tuple[float, float]], seed: int) -> None:
    """With the vectors themselves, as the paper writes it."""
    gradients = torch.tensor(given_, dtype=torch.float64)
    order = orders(len(gradients), seed)
    total = torch.zeros(2, dtype=torch.float64)
    for own, others in enumerate(order):
        left = gradients[own].clone()
        for other in others:
            inner = left @ gradients[other]
            if other != own and inner < -1e-9:
                left -= inner / gradients[other].square().sum() * gradients[other]
        total += left
    factors = projected((gradients @ gradients.T).tolist(), order)
    assert min(factors) >= 1
    found = torch.tensor(factors, dtype=torch.float64) @ gradients
    torch.testing.assert_close(found, total, rtol=1e-5, atol=1e-5)


@given(st.lists(LOSSES, min_size=1, max_size=5), st.lists(LOSSES, min_size=5, max_size=5))
def test_factors_of_gradnorm_sum_to_the_number_of_tasks(
    losses: list[list[float]], scales: list[list[float]]
) -> None:
    weighting = method("gradnorm", units=(1.0,) * 3, lr=0.3)
    for values, scale in zip(losses, scales, strict=False):
        theta = nn.Parameter(torch.ones(1, dtype=torch.float64))
        model = nn.Module()
        model.theta = theta
        given_ = torch.tensor(values) + torch.tensor(scale) * (theta - 1)
        factors = weighting(step(given_), model)
        assert factors.sum().item() == pytest.approx(3) and factors.min() > 0


@given(st.lists(LOSSES, min_size=2, max_size=6))
def test_factors_of_famo_sum_to_one_and_its_weights_are_a_simplex(
    losses: list[list[float]],
) -> None:
    weighting = method("famo", units=(1.0,) * 3, lr=0.5)
    assert isinstance(weighting, FAMOWeighting)
    for values in losses:
        given_ = torch.tensor(values, dtype=torch.float64)
        factors = weighting(step(given_), nn.Identity())
        assert factors.sum().item() == pytest.approx(1) and factors.min() >= 0
        z = factors * given_ / (factors * given_).sum()
        torch.testing.assert_close(z, weighting.logit_T.softmax(0), rtol=1e-5, atol=1e-7)
        weighting.on_step_end(given_ * 0.9)


@pytest.mark.parametrize("name", METHODS)
def test_a_task_without_labels_in_a_step_keeps_what_was_learned(name: str) -> None:
    weighting, model = method(name), Plane(0.3, 0.4)
    centres = [(1.0, 0.0), (0.0, 3.0)]
    for _ in range(3):
        weighting(step(model.losses(centres)), model)
        weighting.on_step_end(model.losses(centres).detach() * 0.9)
    learned = {key: value.clone() for key, value in weighting.state_dict().items()}
    losses = model.losses(centres) * torch.tensor([1.0, 0.0])
    factors = weighting(step(losses, [True, False]), model)
    weighting.on_step_end(losses.detach())
    assert factors.isfinite().all() and factors[0] > 0
    kept = {"sum_T", "count_T"} | ({"factor_T"} if name == "gradnorm" else set())  # scaled
    for key, value in weighting.state_dict().items():
        assert value.isfinite().all()
        if key not in kept:
            assert value[1] == learned[key][1], key


@pytest.mark.parametrize("name", METHODS)
def test_means_are_those_of_the_steps_since_the_last(name: str) -> None:
    weighting, model = method(name), Plane(0.3, 0.4)
    for _ in range(2):
        seen = []
        for _ in range(3):
            seen.append(weighting(step(model.losses([(1.0, 0.0), (0.0, 3.0)])), model))
            weighting.on_step_end(torch.tensor([0.5, 6.0]))
        assert weighting.take_means() == pytest.approx(torch.stack(seen).mean(0).tolist())
    assert weighting.take_means() == [0.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in METHODS if name != "pcgrad"])
def test_the_weighted_loss_forgets_the_unit_of_a_task(name: str) -> None:
    """Ten times the loss ends with the same factor times loss, of uncertainty and famo, or
    times gradient, of gradnorm; pcgrad keeps the units."""
    found = []
    for unit in (1.0, 10.0):
        weighting, model = method(name, lr=0.05), Plane(0.3, 0.4)
        for _ in range(2000):
            losses = model.losses([(1.0, 0.0), (0.0, 3.0)]) * torch.tensor([unit, 1.0])
            factors = weighting(step(losses), model)
            weighting.on_step_end(losses.detach())
        parts = factors * losses.detach()
        found.append((parts / parts.sum()).tolist())
    assert found[0] == pytest.approx(found[1], abs=0.05)


def test_pcgrad_draws_another_order_in_each_step() -> None:
    assert len({str(orders(4, seed)) for seed in range(20)}) > 15
    assert orders(4, 7) == orders(4, 7)
    assert isinstance(method("pcgrad"), PCGradWeighting)
