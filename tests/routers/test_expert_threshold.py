"""Expert thresholds against golden numbers, and how they follow the batches.

Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from recsys_moe.routers import RouterShape
from recsys_moe.routers.expert_threshold import ExpertThresholdRouter, cutoffs

LOGITS = torch.tensor([[3.0, 0], [2, 1], [1, 2], [0, -1]], dtype=torch.float64)


def identity_router(num_experts: int = 2, **settings: object) -> ExpertThresholdRouter:
    """Its logits are its input."""
    settings = {"k": 1, "warmup": 0, **settings}
    config = ExpertThresholdRouter.Config(**settings)
    router = ExpertThresholdRouter(config, RouterShape(num_experts, num_experts)).double()
    with torch.no_grad():
        router.gate.weight.copy_(torch.eye(num_experts))
    return router.train()


def alone(values: Tensor) -> Tensor:
    return values


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


@pytest.mark.parametrize(("k", "expected"), [(1, [2.0, 1.0]), (2, [0.0, -1.0])])
def test_the_cutoff_is_the_last_row_of_an_equal_share(k: int, expected: list[float]) -> None:
    """4 rows, 2 experts: 2 each for k = 1, of [3, 2, 1, 0] and [2, 1, 0, -1]; all for k = 2."""
    assert cutoffs(LOGITS, k).tolist() == expected


def test_a_row_takes_every_expert_that_it_passes_and_else_the_nearest() -> None:
    """c = [1.5, .5]: row 0 passes the first, row 1 both, row 2 the second; row 3 is 1.5 below each:
    the lower index. Weights are sigmoids."""
    router = identity_router().eval()
    router.cutoff_E.copy_(torch.tensor([1.5, 0.5]))
    router.weight.fill_(1.0)
    weights_BE = router(LOGITS).weights_BE
    s = sigmoid
    expected = [[s(3), 0], [s(2), s(1)], [0, s(2)], [s(0), 0]]
    torch.testing.assert_close(weights_BE, torch.tensor(expected, dtype=torch.float64))


def test_cutoffs_are_a_moving_average_without_the_bias_of_its_start() -> None:
    """decay .9: q = [2, 1] then, of -LOGITS ([0, -1, -2, -3] and [1, 0, -1, -2]), [-1, 0].

    .1 [2, 1] = [.2, .1], weight .1; .9 [.2, .1] + .1 [-1, 0] = [.08, .09], weight .19."""
    router = identity_router(decay=0.9)
    for sign, cutoff, weight in ((1, [0.2, 0.1], 0.1), (-1, [0.08, 0.09], 0.19)):
        router(sign * LOGITS)
        router.on_step_end(alone)
        assert router.cutoff_E.tolist() == pytest.approx(cutoff)
        assert router.weight.item() == pytest.approx(weight)
    selected_BE = router.eval()(torch.tensor([[0.43, 0.46], [0.42, 0.48]]).double()).selected_BE
    # .08 / .19 = .42105, .09 / .19 = .47368
    assert selected_BE.tolist() == [[True, False], [False, True]]


def test_during_the_warmup_the_batch_decides_and_afterwards_it_does_not() -> None:
    """Each takes 2 of 4 rows: row 0 the first, row 1 both, row 2 the second; row 3 is 2 below each.
    Alone in its batch a row passes its own cutoffs; with those of the step before, c = [2, 1]."""
    router = identity_router(warmup=1, decay=0.0)
    assert router(LOGITS).selected_BE.int().tolist() == [[1, 0], [1, 1], [0, 1], [1, 0]]
    assert router(LOGITS[3:]).selected_BE.int().tolist() == [[1, 1]]
    router.on_step_end(alone)  # mean of [2, 1] and [0, -1]: [1, 0]
    assert router.cutoff_E.tolist() == [1, 0]
    assert router(LOGITS[3:]).selected_BE.int().tolist() == [[1, 0]]
    whole, parts = router(LOGITS), [router(row[None]) for row in LOGITS]
    assert torch.equal(whole.weights_BE, torch.cat([part.weights_BE for part in parts]))


def test_cutoffs_are_the_mean_over_the_processes() -> None:
    """Own [2, 1], of another [4, 3]: [3, 2]; a process without rows joins the sum."""
    router = identity_router(decay=0.0)
    router(LOGITS)
    router.on_step_end(lambda seen: seen + torch.tensor([4.0, 3, 1]).double())
    assert router.cutoff_E.tolist() == [3, 2]
    router.on_step_end(lambda seen: seen + torch.tensor([4.0, 3, 1]).double())
    assert router.cutoff_E.tolist() == [4, 3] and router.steps.item() == 2


def test_a_step_that_counted_nothing_changes_nothing() -> None:
    router = identity_router()
    router(LOGITS)
    router.on_step_end(alone)
    before = copy.deepcopy(router.state_dict())
    router(LOGITS[:0])
    router.eval()(LOGITS)
    router.on_step_end(alone)
    assert all(torch.equal(before[key], value) for key, value in router.state_dict().items())


def test_loads_are_even_and_the_mean_is_near_k() -> None:
    """Logits whose means differ by up to 2; a share of 2 of 8 is .25 for each expert."""
    generator = torch.Generator().manual_seed(0)
    shift = torch.linspace(-1, 1, 8)
    router = identity_router(8, k=2, decay=0.9).float()
    for _ in range(50):
        router(torch.randn(512, 8, generator=generator) + shift)
        router.on_step_end(alone)
    selected_BE = router.eval()(torch.randn(4096, 8, generator=generator) + shift).selected_BE
    load_E = selected_BE.float().mean(0)
    assert (load_E - 0.25).abs().max() < 0.06  # and .1 / 8 more: rows that pass nowhere
    counts = selected_BE.sum(-1)
    assert counts.min() == 1 and counts.max() > 4 and 2 <= counts.float().mean() < 2.2


def test_the_thresholds_travel_with_the_weights() -> None:
    router, other = identity_router(), identity_router()
    router(LOGITS)
    router.on_step_end(alone)
    other.load_state_dict(copy.deepcopy(router.state_dict()))
    assert torch.equal(router.eval()(LOGITS).weights_BE, other.eval()(LOGITS).weights_BE)
    assert not torch.equal(other(LOGITS).weights_BE, identity_router().eval()(LOGITS).weights_BE)
