"""Loss-free balancing against golden numbers, and when its bias moves.

Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from recsys_moe.config.settings import ConfigError, parse_config
from recsys_moe.routers import RouterShape
from recsys_moe.routers.loss_free import LossFreeRouter, balancing_step

LOGITS = torch.tensor([[2.0, 1, 0, -1]], dtype=torch.float64)


def identity_router(**settings: object) -> LossFreeRouter:
    """Its logits are its input."""
    router = LossFreeRouter(LossFreeRouter.Config(**settings), RouterShape(4, 4)).double()
    with torch.no_grad():
        router.gate.weight.copy_(torch.eye(4))
    return router.train()


def alone(values: Tensor) -> Tensor:
    return values


def test_the_bias_chooses_and_does_not_weigh() -> None:
    """s + c = [.93, .43, .48, .27] keeps 0 and 2: .880797 / 1.380797 and .5 / 1.380797."""
    router = identity_router()
    router.balance_E.copy_(torch.tensor([0.05, -0.3, -0.02, 0]))
    weights_BE = router(LOGITS).weights_BE
    assert weights_BE[0].tolist() == pytest.approx([0.637890, 0, 0.362110, 0], abs=1e-6)


def test_scores_that_underflow_still_have_weights() -> None:
    """In float32 sigmoid(-200) is 0; e^-200 : e^-201 = .731059 : .268941."""
    router = identity_router().float()
    weights_BE = router(torch.tensor([[-200.0, -201, -300, -400]])).weights_BE
    assert weights_BE[0].tolist() == pytest.approx([0.731059, 0.268941, 0, 0], abs=1e-6)


def test_a_step_goes_towards_the_mean_load_and_sums_to_0() -> None:
    """Mean load 2: signs [-1, 0, 1, 1], their mean 1/4."""
    assert balancing_step(torch.tensor([4, 2, 1, 1])).tolist() == [-1.25, -0.25, 0.75, 0.75]
    assert balancing_step(torch.tensor([2, 2, 2, 2])).tolist() == [0, 0, 0, 0]
    # the mean, 5/3, is no whole number: signs [1, -1, -1], their mean -1/3
    expected = torch.tensor([4 / 3, -2 / 3, -2 / 3])
    torch.testing.assert_close(balancing_step(torch.tensor([1, 2, 2])), expected)


def test_settling_moves_the_bias_by_the_rate_and_forward_does_not() -> None:
    """Two passes, three rows that choose 0 and 1 and one that chooses 2 and 3: [3, 3, 1, 1]."""
    router = identity_router(bias_rate=0.01)
    router(LOGITS.expand(3, 4))
    router(-LOGITS)
    assert not router.balance_E.any()
    router.on_step_end(alone)
    assert router.balance_E.tolist() == pytest.approx([-0.01, -0.01, 0.01, 0.01])
    before = router.balance_E.clone()
    router.on_step_end(alone)  # nothing was counted since
    router.eval()(LOGITS)
    router.on_step_end(alone)
    assert torch.equal(router.balance_E, before)


def test_loads_are_summed_over_the_processes_before_the_sign() -> None:
    """Own loads [1, 1, 0, 0], of the others [0, 0, 2, 2]: together [1, 1, 2, 2] of mean 1.5."""
    router = identity_router(bias_rate=0.01)
    router(LOGITS)
    router.on_step_end(lambda load_E: load_E + torch.tensor([0, 0, 2, 2]))
    assert router.balance_E.tolist() == pytest.approx([0.01, 0.01, -0.01, -0.01])


def test_a_process_that_counted_nothing_still_joins_the_sum() -> None:
    router = identity_router(bias_rate=0.01)
    router.on_step_end(lambda load_E: load_E + torch.tensor([4, 0, 0, 0]))
    assert router.balance_E.tolist() == pytest.approx([-0.015, 0.005, 0.005, 0.005])


def test_the_bias_is_a_buffer_without_gradient_that_travels_with_the_weights() -> None:
    router = identity_router(bias_rate=0.5)
    router(LOGITS)
    router.on_step_end(alone)
    assert "balance_E" in router.state_dict() and not router.balance_E.requires_grad
    other = identity_router()
    other.load_state_dict(copy.deepcopy(router.state_dict()))
    assert torch.equal(router(LOGITS).selected_BE, other(LOGITS).selected_BE)
    assert not torch.equal(router(LOGITS).selected_BE, identity_router()(LOGITS).selected_BE)


def test_the_bias_evens_out_the_loads() -> None:
    """Logits that favour two of four experts on nearly all rows; even is a share of 1/2 each."""
    router = identity_router(bias_rate=0.01)
    x_BD = LOGITS + 0.5 * torch.randn(256, 4, generator=torch.Generator().manual_seed(0)).double()
    first_E = router(x_BD).selected_BE.double().mean(0)
    for _ in range(200):
        router(x_BD)
        router.on_step_end(alone)
    last_E = router(x_BD).selected_BE.double().mean(0)
    assert first_E.max() > 0.9 and first_E.min() < 0.1
    assert (last_E - 0.5).abs().max() < 0.1


def test_a_negative_rate_is_refused_and_one_expert_is_remarked() -> None:
    with pytest.raises(ConfigError, match=r"^model\.router\.bias_rate: .*equal .*got -1"):
        parse_config({"model": {"router": {"name": "loss_free", "bias_rate": -1}}})
    assert "gets no gradient" in LossFreeRouter.Config(k=1).remarks[0]
    assert LossFreeRouter.Config().remarks == []
