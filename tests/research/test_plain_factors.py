"""research/plain_factors.py: how negatives weigh, and what a pair may not say of itself."""

from __future__ import annotations

import torch

from research.plain_factors import Factors, weights_and_offsets

WATCHED_UI = torch.tensor([[1.0, 1, 1, 0, 0], [1, 0, 0, 0, 0]])
"""User 0 watched three of five items, user 1 one."""


def test_negatives_of_a_user_weigh_as_its_positives_to_a_power() -> None:
    """To the power 1: 3 and 1. To the power 0: (3 + 1) / 2 = 2 each. None for what was watched."""
    for power, expected in ((1.0, [3.0, 1.0]), (0.0, [2.0, 2.0])):
        weight_UI, _ = weights_and_offsets(WATCHED_UI, power)
        torch.testing.assert_close(weight_UI.sum(1), torch.tensor(expected))
        assert weight_UI[WATCHED_UI == 1].eq(0).all()


def test_an_offset_is_the_weight_beside_that_of_uniform_negatives() -> None:
    """User 1 has 1 positive and 4 free items, which uniform negatives would weigh 1/4 each."""
    weight_UI, offset_UI = weights_and_offsets(WATCHED_UI, 0.0)
    torch.testing.assert_close(offset_UI[1, 1:].exp(), weight_UI[1, 1:] * 4)


def test_in_training_a_pair_is_scored_without_its_own_item() -> None:
    """The score of user 1 and its only item is then that of no history: b + c = 0."""
    factors = Factors(WATCHED_UI, by_items=True)
    assert factors.scores(training=True)[1, 0].abs() < 1e-7
    expected = factors.of_item_IR[0] @ factors.item_IR[0]
    torch.testing.assert_close(factors.scores(training=False)[1, 0], expected)
