"""What idle means, on the page, in the report and in comparisons."""

from __future__ import annotations

import pytest

from recsys_moe.artifact.idle import idle_experts, spared_experts


def test_a_tenth_of_an_even_share_or_less_is_spared() -> None:
    """Of 4 experts and 80 choices an even share is 20, a tenth of it 2."""
    assert spared_experts([0, 2, 3, 75]) == [0, 1]


@pytest.mark.parametrize("scale", [1, 0.01])
def test_idle_is_who_is_spared_by_every_task_whatever_the_unit(scale: float) -> None:
    watch, rating = [0, 1, 39, 40], [1, 20, 19, 40]
    assert idle_experts([[scale * n for n in load] for load in (watch, rating)]) == [0]


def test_without_a_choice_all_are_idle_and_without_a_task_none_is() -> None:
    assert idle_experts([[0, 0]]) == [0, 1]
    assert idle_experts([]) == []
