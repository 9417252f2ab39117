"""The plan of a step: which pairs, and the cut of the experts into padded blocks."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys_moe.model.pair_plan import Block, plan_blocks, plan_pairs

LOADS = st.lists(st.integers(0, 40), min_size=1, max_size=11)
COSTS = st.integers(0, 30)


def counts(blocks: list[Block]) -> list[int]:
    return [block.experts.stop - block.experts.start for block in blocks]


def cost(blocks: list[Block], per_block: int) -> int:
    return blocks[-1].pairs.stop + per_block * len(blocks)


def all_cuts(first: int, last: int) -> list[list[tuple[int, int]]]:
    """Every cut into halves, halves of halves and so on: 26 of them for 8 experts."""
    if last - first == 1:
        return [[(first, last)]]
    middle = (first + last) // 2
    both = itertools.product(all_cuts(first, middle), all_cuts(middle, last))
    return [[(first, last)], *(left + right for left, right in both)]


def naive_cost(sizes_E: list[int], cut: list[tuple[int, int]], per_block: int) -> int:
    return sum(per_block + (last - first) * max(sizes_E[first:last]) for first, last in cut)


@given(LOADS, COSTS)
def test_blocks_cover_every_expert_and_every_pair_in_order(
    sizes_E: list[int], per_block: int
) -> None:
    blocks = plan_blocks(sizes_E, per_block)
    assert [e for block in blocks for e in range(len(sizes_E))[block.experts]] == list(
        range(len(sizes_E))
    )
    ends = [0, *(block.pairs.stop for block in blocks)]
    assert [block.pairs.start for block in blocks] == ends[:-1]
    for block, count in zip(blocks, counts(blocks), strict=True):
        assert block.pairs.stop - block.pairs.start == count * block.capacity
        assert block.capacity == max(sizes_E[block.experts])


@given(LOADS, COSTS)
def test_the_cut_is_the_cheapest_or_one_block_that_costs_a_fifth_more_at_most(
    sizes_E: list[int], per_block: int
) -> None:
    found = cost(plan_blocks(sizes_E, per_block), per_block)
    cuts = all_cuts(0, len(sizes_E))
    best = min(naive_cost(sizes_E, cut, per_block) for cut in cuts)
    whole = naive_cost(sizes_E, [(0, len(sizes_E))], per_block)
    assert found == (whole if whole <= 1.2 * best else best)


def test_equal_loads_are_one_block_and_a_busy_expert_has_its_own() -> None:
    """Of 8 experts the fourth has all 160 pairs: padded together they would be 1,280."""
    assert plan_blocks([20] * 8, 32) == [Block(slice(0, 8), slice(0, 160), 20)]
    blocks = plan_blocks([0, 0, 0, 160, 0, 0, 0, 0], 32)
    assert counts(blocks) == [2, 1, 1, 4]
    assert [block.capacity for block in blocks] == [0, 0, 160, 0]


def test_a_plan_says_where_each_task_finds_its_pairs() -> None:
    """Rows 0 and 1; expert 1 for all, expert 0 for task 0 of row 1. One block of two experts.

    Pairs: expert 0 has row 1 and one that pads, expert 1 has rows 0 and 1.
    """
    selected_BTE = torch.tensor([[[0, 1], [0, 1]], [[1, 1], [0, 1]]], dtype=torch.bool)
    plan = plan_pairs(selected_BTE)
    assert plan.blocks == [Block(slice(0, 2), slice(0, 4), 2)]
    assert plan.row_P.tolist() == [1, 0, 0, 1]
    assert plan.real_R.tolist() == [0, 2, 3]
    assert plan.flat_N.tolist() == [1, 3, 4, 5, 7]
    assert plan.slot_N.tolist() == [0, 1, 2, 2, 3]
    assert plan.pair_N.tolist() == [2, 2, 0, 3, 3]
    assert plan.order_N.tolist() == [2, 0, 1, 3, 4]


@pytest.mark.parametrize("rows", [0, 3])
def test_a_plan_without_any_pair_has_one_empty_block(rows: int) -> None:
    plan = plan_pairs(torch.zeros(rows, 2, 4, dtype=torch.bool))
    assert plan.blocks == [Block(slice(0, 4), slice(0, 0), 0)]
    assert len(plan.row_P) == len(plan.flat_N) == 0
