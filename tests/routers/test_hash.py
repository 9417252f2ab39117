"""Hash routing: a stored table of users, at random or balanced. Axes: B batch, E experts."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recsys_moe.routers import RouterShape
from recsys_moe.routers.hash import HashRouter, assign_users

USERS = 12_000


def make(num_experts: int = 4, users: int = USERS, **settings: object) -> HashRouter:
    return HashRouter(HashRouter.Config(**settings), RouterShape(3, num_experts, users))


def experts_of(router: HashRouter, users: Tensor) -> Tensor:
    routing = router(torch.zeros(len(users), 3), users)
    assert routing.selected_BE.sum(-1).tolist() == [1] * len(users)
    assert torch.equal(routing.weights_BE, routing.selected_BE.float())
    return routing.selected_BE.int().argmax(-1)


def test_a_user_always_has_the_same_expert_whatever_the_input() -> None:
    router = make().train()
    users = torch.tensor([5, 7, 5], dtype=torch.int32)
    first = router(torch.randn(3, 3), users).weights_BE
    second = router.eval()(torch.randn(3, 3), users).weights_BE
    assert torch.equal(first, second) and torch.equal(first[0], first[2])


def test_the_table_is_uniform() -> None:
    """12,001 draws over 4 experts: 3,000 each, standard deviation sqrt(12,000 * 3/16) = 47."""
    counts_E = torch.bincount(make().expert_U, minlength=4)
    assert (counts_E - 3000).abs().max() < 4 * 47


def test_tasks_share_a_table_and_seeds_do_not() -> None:
    assert torch.equal(make(seed=3).expert_U, make(seed=3).expert_U)
    assert not torch.equal(make(seed=3).expert_U, make(seed=4).expert_U)


def test_the_table_does_not_depend_on_global_random_state() -> None:
    torch.manual_seed(1)
    first = make().expert_U
    torch.manual_seed(2)
    assert torch.equal(first, make().expert_U)


def test_the_oov_user_has_an_entry_too() -> None:
    assert make(users=5).expert_U.shape == (6,)
    assert experts_of(make(users=5), torch.tensor([5])).tolist() == [make(users=5).expert_U[5]]


def test_assign_users_golden() -> None:
    """5 -> 0 (5, 0), 4 -> 1 (5, 4), 3 -> 1 (5, 7), 3 -> 0 (8, 7), 1 -> 1 (8, 8)."""
    assert assign_users([5, 4, 3, 3, 1], 2) == [0, 1, 1, 0, 1]


def naive_assignment(counts: list[int], num_experts: int) -> list[int]:
    loads, assigned = [0] * num_experts, [0] * len(counts)
    for user in sorted(range(len(counts)), key=lambda u: (-counts[u], u)):
        assigned[user] = loads.index(min(loads))
        loads[assigned[user]] += counts[user]
    return assigned


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 5))
def test_the_heap_equals_a_plain_search_for_the_least_loaded(counts: list[int], n: int) -> None:
    assert assign_users(counts, n) == naive_assignment(counts, n)


def test_balanced_spreads_the_training_rows_and_leaves_other_users_alone() -> None:
    counts = torch.randint(0, 20, (USERS,), generator=torch.Generator().manual_seed(0))
    router, plain = make(balanced=True), make()
    router.setup(counts)
    plain.setup(counts)
    loads_E = torch.zeros(4, dtype=torch.long).index_add_(0, router.expert_U[:-1], counts)
    assert loads_E.max() - loads_E.min() <= 1
    oov = torch.cat([counts == 0, torch.tensor([True])])
    assert torch.equal(router.expert_U[oov], plain.expert_U[oov])
    assert torch.equal(plain.expert_U, make().expert_U)


def test_starting_again_changes_nothing() -> None:
    router, counts = make(balanced=True, users=9), torch.arange(9)
    router.setup(counts)
    first = router.expert_U.clone()
    router.setup(counts)
    assert torch.equal(router.expert_U, first)


def test_no_training_rows_and_one_expert_are_fine() -> None:
    router = make(num_experts=1, users=2, balanced=True)
    router.setup(torch.zeros(2, dtype=torch.long))
    assert experts_of(router, torch.tensor([0, 1, 2])).tolist() == [0, 0, 0]


def test_the_table_travels_in_the_state_dict() -> None:
    source, target = make(seed=1), make(seed=2)
    target.load_state_dict(source.state_dict())
    users = torch.arange(50)
    assert torch.equal(experts_of(source, users), experts_of(target, users))
    assert sum(p.numel() for p in source.parameters()) == 0
