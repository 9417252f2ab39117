"""Features and bags: sums of table rows, without the item that a training row is about."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recsys_moe.model.encoders.base import Encoders
from recsys_moe.model.encoders.features import Features
from recsys_moe.model.encoders.item_bag import ItemBag, LinearItemBag
from recsys_moe.model.request import Request, of_items

ITEMS = 5
POSITIVES = {0: [0, 2, 4], 1: [1], 3: [0, 1, 2, 3]}  # of users 0..3; user 4 is the OOV user
USERS = 4


def entries() -> tuple[Tensor, Tensor]:
    counts = [len(POSITIVES.get(user, [])) for user in range(USERS + 1)]
    first_N = torch.tensor([0, *counts]).cumsum(0)
    return first_N, torch.tensor([item for items in POSITIVES.values() for item in items]).int()


def a_bag(dropout: float = 0.0, *, levels: int = 1) -> ItemBag:
    made = ItemBag("user", (USERS, ITEMS), levels=levels, dims=(3, 4), dropout=dropout)
    made.set_entries(*entries())
    torch.nn.init.normal_(made.table_RW)
    torch.nn.init.normal_(made.kernel_DW)
    made.stream.reseed(0)
    return made


def naive(made: ItemBag, user: int, left_out: int | None) -> Tensor:
    """|N|^-1/2 K sum of y_j over N without `left_out`."""
    items = POSITIVES.get(user, [])
    y_W = sum((made.table_RW[j] for j in items if j != left_out), torch.zeros(3))
    return made.kernel_DW @ y_W / max(len(items), 1) ** 0.5


def test_the_pool_of_a_training_row_is_without_its_item() -> None:
    made = a_bag().train()
    user_B, item_B = torch.tensor([0, 3, 0, 1, 3]), torch.tensor([2, 0, 4, 1, 3])
    expected = [naive(made, int(u), int(i)) for u, i in zip(user_B, item_B, strict=True)]
    torch.testing.assert_close(made(Request(user_B, item_B)), torch.stack(expected))


@pytest.mark.parametrize("threads", [1, 2])
def test_the_gradient_is_the_same_in_every_pass_on_any_number_of_threads(threads: int) -> None:
    """Rows of one anchor add up to its gradient, which indexing does in an order of chance."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made = ItemBag("user", (300, 50), levels=1, dims=(128, 128), dropout=0.0).train()
        first_N = torch.arange(302).mul(20).clamp(max=6000)  # each has 0 to 19
        made.set_entries(first_N, torch.arange(20).repeat(300).int())
        torch.nn.init.normal_(made.table_RW)
        torch.nn.init.normal_(made.kernel_DW)
        user_B, item_B = torch.randint(300, (2**14,)), torch.randint(20, (2**14,))
        weight_BD = torch.randn(2**14, 128)
        found = []
        for _ in range(10):
            made.zero_grad()
            (made(Request(user_B, item_B)) * weight_BD).sum().backward()
            assert made.table_RW.grad is not None
            found.append(made.table_RW.grad.clone())
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, found[0]) for one in found)


def test_an_item_outside_the_bag_leaves_a_random_one_out() -> None:
    made = a_bag().train()
    user_B, item_B = torch.tensor([0] * 600), torch.tensor([1, 3, ITEMS] * 200)
    pool_BD = made(Request(user_B, item_B))
    one_out = torch.stack([naive(made, 0, j) for j in POSITIVES[0]])
    away_B3 = (pool_BD[:, None] - one_out).abs().amax(-1)
    assert (away_B3.amin(-1) < 1e-5).all()
    counts = torch.bincount(away_B3.argmin(-1), minlength=3)
    assert (counts > 150).all()  # of 200 each: 4.3 deviations of sqrt(600 2/9) = 11.5


def test_evaluation_pools_the_whole_bag() -> None:
    made = a_bag(0.5).eval()
    user_B = torch.tensor([0, 1, 2, 3, USERS, 0])
    expected = torch.stack([naive(made, int(user), None) for user in user_B])
    torch.testing.assert_close(made(Request(user_B, torch.zeros(6).int())), expected)


def test_a_pool_as_wide_as_the_embeddings_has_no_map_to_learn() -> None:
    made = ItemBag("user", (USERS, ITEMS), levels=1, dims=(0, 4), dropout=0.0)
    made.set_entries(*entries())
    torch.nn.init.normal_(made.table_RW)
    assert made.table_RW.shape == (ITEMS, 4) and not made.kernel_DW.requires_grad
    expected = made.table_RW[[0, 2, 4]].sum(0) / 3**0.5
    torch.testing.assert_close(made.of_entities(torch.tensor([0]))[0], expected)


def test_an_empty_bag_has_a_pool_of_zero() -> None:
    made = a_bag(0.5).train()
    pool_BD = made(Request(torch.tensor([2, USERS, 2]), torch.tensor([0, 1, ITEMS])))
    assert (pool_BD == 0).all()
    pool_BD.sum().backward()
    assert made.table_RW.grad is not None


@pytest.mark.slow
def test_dropout_leaves_out_a_share_and_keeps_the_mean() -> None:
    """A pool is one draw per user and batch, so that of rows of one batch is the same one."""
    made = a_bag(0.5).train()
    user_B, item_B = torch.tensor([3, 3]), torch.tensor([0, 0])
    draws = [made(Request(user_B, item_B)) for _ in range(4000)]
    assert all(torch.equal(first, second) for first, second in draws)
    mean_D = torch.stack(draws).mean((0, 1))
    torch.testing.assert_close(mean_D, naive(made, 3, 0), atol=0.15, rtol=0)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradients_are_those_of_the_naive_sum(dropout: float) -> None:
    made = a_bag(dropout).double().train()
    user_B, item_B = torch.tensor([0, 3, 2, 3, 1]), torch.tensor([2, 0, 1, 4, 1])

    def pooled(table_RW: Tensor, kernel_DW: Tensor) -> Tensor:
        made.stream.reseed(1)
        state = {"table_RW": table_RW, "kernel_DW": kernel_DW}
        return torch.func.functional_call(made, state, (Request(user_B, item_B),))

    inputs = [one.detach().requires_grad_() for one in (made.table_RW, made.kernel_DW)]
    assert torch.autograd.gradcheck(pooled, inputs)


LEVELS = torch.tensor([0, 2, 3, 1, 0, 2, 2, 0])
"""Of the entries; 3 is "not rated"."""


def sloped(dropout: float = 0.0) -> LinearItemBag:
    made = LinearItemBag("user", (USERS, ITEMS), levels=4, dims=(3, 4), dropout=dropout)
    first_N, item_P = entries()
    made.set_entries(first_N, (LEVELS * ITEMS + item_P).int())
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    made.stream.reseed(0)
    return made


def test_a_level_is_in_standard_deviations_above_the_mean() -> None:
    made = sloped()
    # Rated: 0 2 1 0 2 2 0, mean 1, squares of what is left 1 1 0 1 1 1 1, so a variance of 6 / 7.
    step = (7 / 6) ** 0.5
    torch.testing.assert_close(made.step_L, torch.tensor([-step, 0, step, 0]))
    expected = made.base_JW[4] + step * made.slope_JW[4]
    torch.testing.assert_close(made.table()[2 * ITEMS + 4], expected)
    torch.testing.assert_close(made.table()[3 * ITEMS + 4], made.base_JW[4])  # not rated


@pytest.mark.parametrize("level", [0, 1, 2])
def test_slopes_of_a_single_level_have_no_effect(level: int) -> None:
    """And 0 for a bag without ratings: level 2."""
    made = LinearItemBag("user", (USERS, ITEMS), levels=3, dims=(3, 4), dropout=0.0)
    first_N, item_P = entries()
    made.set_entries(first_N, (level * ITEMS + item_P).int())
    torch.nn.init.normal_(made.slope_JW)
    assert (made.of_entities(torch.arange(USERS)) == 0).all() and made.table().isfinite().all()


@pytest.mark.parametrize("training", [True, False])
def test_a_linear_bag_equals_a_bag_with_its_table(training: bool) -> None:
    """The naive twin; its gradients, put together level by level, are those of the two parts."""
    made = sloped(0.5).double().train(training)
    twin = (
        ItemBag("user", (USERS, ITEMS), levels=4, dims=(3, 4), dropout=0.5).double().train(training)
    )
    twin.set_entries(made.first_N, made.row_P)
    twin.init_from(**{key: value.double() for key, value in made.cold_start_state().items()})
    twin.stream.reseed(0)
    user_B, item_B = torch.tensor([0, 3, 2, 3, 1]), torch.tensor([2, 0, 1, 4, 1])
    found, wanted = made(Request(user_B, item_B)), twin(Request(user_B, item_B))
    torch.testing.assert_close(found, wanted)
    for pool_BD in (found, wanted):
        pool_BD.square().sum().backward()
    gradient_LJW = twin.table_RW.grad.unflatten(0, (4, ITEMS))  # type: ignore[union-attr]
    torch.testing.assert_close(made.base_JW.grad, gradient_LJW.sum(0))
    moved_JW = (made.step_L[:, None, None] * gradient_LJW).sum(0)
    torch.testing.assert_close(made.slope_JW.grad, moved_JW)


def test_a_warm_start_keeps_the_vectors_of_ratings() -> None:
    """Ratings keep their vectors; what was not rated moves to the new mean."""
    old, new = sloped(), sloped()
    first_N, item_P = entries()
    new.set_entries(first_N, (LEVELS.clamp(min=1) * ITEMS + item_P).int())
    assert new.step_L[0] != old.step_L[0]
    new.init_from(**old.cold_start_state())
    torch.testing.assert_close(new.table()[: 3 * ITEMS], old.table()[: 3 * ITEMS])
    torch.testing.assert_close(new.kernel_DW, old.kernel_DW)


def test_features_are_the_weighted_sum_of_their_rows() -> None:
    made = Features("item", rows=4, dim=2, entities=3)
    made.table_RD.data = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [5.0, 5.0]])
    first_N = torch.tensor([0, 2, 2, 3, 3])  # 2 entries, 0, 1; nothing for the OOV id
    made.set_entries(first_N, torch.tensor([0, 2, 1]).int(), torch.tensor([1.0, -0.5, 3.0]))
    # (1, 0) - (2, 2) / 2, nothing, 3 (0, 1), nothing
    expected = torch.tensor([[0.0, -1.0], [0.0, 0.0], [0.0, 3.0], [0.0, 0.0]])
    assert torch.equal(made(of_items(torch.tensor([0, 1, 2, 3]))), expected)
    assert torch.equal(made(of_items(torch.tensor([2, 0, 2]))), expected[[2, 0, 2]])


def test_materialized_tables_hold_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recsys_moe.model.encoders.base.MATERIALIZED_AT_ONCE", 2)  # several parts
    features = Features("user", rows=1, dim=4, entities=USERS)
    features.table_RD.data = torch.ones(1, 4)
    features.set_entries(
        torch.tensor([0, 1, 1, 1, 1, 1]), torch.tensor([0]).int(), torch.tensor([2.0])
    )
    made = Encoders(users=features, item_bag=a_bag().eval())
    users_ND, items_ND = torch.randn(USERS + 1, 4), torch.randn(ITEMS + 1, 4)
    whole_ND, same_ND = made.materialize(users_ND, items_ND)
    index_B = torch.arange(USERS + 1)
    expected = users_ND + made("user", Request(index_B, torch.zeros(USERS + 1).int()))
    torch.testing.assert_close(whole_ND, expected)
    torch.testing.assert_close(whole_ND[USERS], users_ND[USERS])  # nothing is known of it
    assert torch.equal(same_ND, items_ND)


def test_the_user_bag_is_the_item_bag_with_anchor_and_neighbour_exchanged() -> None:
    """In training too, where the user of a row is left out of the pool of its item."""
    made, twin = a_bag().train(), ItemBag("item", (USERS, ITEMS), levels=1, dims=(3, 4), dropout=0)
    twin.set_entries(*entries())
    twin.init_from(**made.cold_start_state())
    one_B, other_B = torch.tensor([0, 3, 1]), torch.tensor([2, 3, 1])
    of_item = Encoders(user_bag=twin.train())("item", Request(other_B, one_B))
    assert torch.equal(of_item, made(Request(one_B, other_B)))
    assert not torch.equal(of_item, twin(Request(one_B, other_B)))
    items_ND = torch.randn(USERS + 1, 4)
    whole_ND = Encoders(user_bag=twin).materialize(torch.zeros(ITEMS + 1, 4), items_ND)[1]
    expected = torch.stack([naive(made, anchor, None) for anchor in range(USERS + 1)])
    torch.testing.assert_close(whole_ND, items_ND + expected)


def test_each_bag_has_its_own_random_stream() -> None:
    one, other = a_bag(0.5), ItemBag("item", (USERS, ITEMS), levels=1, dims=(3, 4), dropout=0.5)
    other.set_entries(*entries())
    other.init_from(**one.cold_start_state())
    both = Encoders(item_bag=one, user_bag=other).train()
    same = Request(torch.tensor([0, 3, 0, 3]), torch.tensor([0, 3, 0, 3]))
    both.reseed(0)
    first = both("user", same), both("item", same)
    assert not torch.equal(*first)
    both.reseed(0)
    assert torch.equal(first[0], both("user", same)) and torch.equal(first[1], both("item", same))
