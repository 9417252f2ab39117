"""The split first layers equal the definition: every expert on every item, for every router.

Axes: B pairs, U users, N items, T tasks, E experts.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys_moe.inference.ranking.largest import largest
from recsys_moe.kinds import Constant
from recsys_moe.model import moe_ranker, ranker
from recsys_moe.model.biases import Biases
from recsys_moe.model.bilinear import DiagonalTerm, ProjectedTerm
from recsys_moe.model.moe import naive_moe
from recsys_moe.model.moe_ranker import MoERanker
from recsys_moe.model.mtmoe import MultiTaskMoE
from recsys_moe.model.ranker import Ranker
from recsys_moe.model.request import Request, of_users
from recsys_moe.model.shape import ModelShape
from recsys_moe.routers import ROUTERS, find_router
from recsys_moe.routers.joint import route

USERS, ITEMS, SEED = 7, 23, 3
SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in sorted(ROUTERS)},
    "expert_choice": {"name": "expert_choice", "eval_group": 5},
    "moesart, dense": {"name": "moesart", "inference": "dense"},
    "moesart, sampled": {"name": "moesart", "inference": "sampled"},
    **{f"{name}, joint": {"name": name, "joint": 3} for name in ("moesart", "pps", "topk")},
    "moesart, joint, sampled": {"name": "moesart", "joint": 3, "inference": "sampled"},
}


def model_with(
    router: dict[str, Any], users: int = USERS, items: int = ITEMS, experts: int = 4
) -> MultiTaskMoE:
    """Random parameters of size 1, so that routing varies and biases matter."""
    torch.manual_seed(0)
    config = find_router(router["name"]).Config(**router)
    sizes: dict[str, Any] = {"embedding_dim": 4, "num_experts": experts, "expert_dim": 6}
    model = MultiTaskMoE(
        MultiTaskMoE.Config(router=config, tower_dims=(5,), **sizes), ModelShape(users, items, 2)
    ).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    if model.moe.output_means is not None:
        torch.nn.init.normal_(model.moe.output_means.mean_EH, std=0.7)
    return model


def scorer_of(model: MultiTaskMoE, **options: Any) -> MoERanker:
    rows = math.lcm(8192, model.routers[0].config.eval_rows)
    return MoERanker(model, model.draws(SEED), rows, **options)


def in_chunks(patch: pytest.MonkeyPatch, rows: int) -> None:
    for module in (ranker, moe_ranker):
        patch.setattr(module, "ROWS_PER_CHUNK", rows)


@torch.inference_mode()
def naive(model: MultiTaskMoE, user_B: Tensor, item_B: Tensor) -> Tensor:
    """(B, T): pairs in one batch, all experts evaluated."""
    model.reseed(SEED)
    x_BD = torch.cat([model.user_embedding(user_B), model.item_embedding(item_B)], -1)
    routings = route(model.routers, x_BD, user_B)
    experts, weights_BTE = model.moe.experts, torch.stack([r.weights_BE for r in routings], 1)
    mixed_BTH = naive_moe(x_BD, weights_BTE, experts.kernel_EDH, experts.bias_EH)
    if model.moe.output_means is not None:
        absent_BTE = torch.stack([r.default_weights_BE for r in routings], 1)
        mixed_BTH = mixed_BTH + absent_BTE @ model.moe.output_means.mean_EH
    return torch.cat([tower(mixed_BTH[:, t]) for t, tower in enumerate(model.towers)], -1)


def definition(model: MultiTaskMoE, user: int, items: int = ITEMS) -> Tensor:
    """(N, T): one user's whole catalogue."""
    return naive(model, torch.full((items,), user), torch.arange(items))


@pytest.mark.parametrize("cache_mb", [512.0, 0.0])
@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_the_logits_equal_the_definition(
    name: str, cache_mb: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks of 10 pairs, which cut users apart; the last user is the unseen one."""
    in_chunks(monkeypatch, 10)
    model = model_with(SETTINGS[name])
    scorer = scorer_of(model, max_cache_mb=cache_mb)
    user_U = torch.tensor([4, 0, USERS])
    for task in range(2):
        found_UN = scorer.grid(of_users(user_U), torch.arange(ITEMS), task)
        for user, found_N in zip(user_U.tolist(), found_UN, strict=True):
            expected_N = definition(model, user)[:, task]
            torch.testing.assert_close(found_N, expected_N, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_the_ranker_of_any_model_gives_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the model's own forward pass in chunks of 10 pairs, also where rows compete or draw."""
    in_chunks(monkeypatch, 10)
    model, users = model_with(SETTINGS[name]), of_users(torch.tensor([4, 0, USERS]))
    model.biases = Biases(USERS, ITEMS, [Constant(0.3, 1.0, 1.0), Constant(3.5, 0.5, 1.0)])
    torch.nn.init.normal_(model.biases.user_UT)
    plain = Ranker(model, model.draws(SEED), scorer_of(model).whole_rows)
    place_B, item_B = torch.tensor([0, 0, 2]), torch.tensor([22, 1, 9])
    for task in range(2):
        own, other = (
            one.grid(users, torch.arange(ITEMS), task) for one in (scorer_of(model), plain)
        )
        torch.testing.assert_close(other, own, rtol=1e-5, atol=1e-5)
        found_B = plain.pairs(users, place_B, item_B, task)
        torch.testing.assert_close(found_B, other[place_B, item_B], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [ProjectedTerm, DiagonalTerm])
@pytest.mark.parametrize("name", ["moesart", "moesart, sampled", "expert_choice", "hash"])
def test_the_bilinear_term_is_added(
    name: str, kind: type[ProjectedTerm | DiagonalTerm], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_chunks(monkeypatch, 10)
    model = model_with(SETTINGS[name])
    model.bilinear = kind(2, 4, 3)
    for parameter in model.bilinear.parameters():
        torch.nn.init.normal_(parameter)
    user_U, some_N = torch.tensor([4, 0, USERS]), torch.tensor([3, 4, 11, 22])
    for task in range(2):
        for users_U in (user_U, user_U[:1]):
            found_UN = scorer_of(model).grid(of_users(users_U), some_N, task)
            for user, found_N in zip(users_U.tolist(), found_UN, strict=True):
                x_ND = model.encode(Request(torch.full_like(some_N, user), some_N))
                expected_N = (definition(model, user)[some_N] + model.bilinear(x_ND))[:, task]
                torch.testing.assert_close(found_N, expected_N, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_asking_for_some_items_does_not_change_their_logits(name: str) -> None:
    scorer = scorer_of(model_with(SETTINGS[name]))
    user_U, some_N = torch.tensor([5, 2, 5]), torch.tensor([3, 4, 11, 22])
    whole_UN = scorer.grid(of_users(user_U), torch.arange(ITEMS), 1)
    torch.testing.assert_close(scorer.grid(of_users(user_U), some_N, 1), whole_UN[:, some_N])
    place_B, item_B = torch.tensor([0, 0, 2]), torch.tensor([22, 1, 9])
    found_B = scorer.pairs(of_users(user_U), place_B, item_B, 1)
    torch.testing.assert_close(found_B, whole_UN[place_B, item_B])


@settings(max_examples=25)
@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 60), st.sampled_from(sorted(ROUTERS)))
def test_any_number_of_users_and_items_in_any_chunks(
    users: int, items: int, rows: int, name: str
) -> None:
    model = model_with({"name": name}, users, items)
    with pytest.MonkeyPatch.context() as patch:
        in_chunks(patch, rows)
        found_UN = scorer_of(model).grid(of_users(torch.arange(users)), torch.arange(items), 0)
    expected = torch.stack([definition(model, user, items)[:, 0] for user in range(users)])
    torch.testing.assert_close(found_UN, expected, rtol=1e-5, atol=1e-5)


def test_the_cache_holds_visited_experts_and_stays_below_its_bound() -> None:
    """An expert's table is 23 items x 6 x 4 bytes = 552; 1,200 bytes hold two."""
    model = model_with({"name": "softmax"})
    small, large = scorer_of(model, max_cache_mb=1200 / 2**20), scorer_of(model)
    small.warm_up()
    large.warm_up()
    assert [len(scorer._precomputed) for scorer in (small, large)] == [2, 4]
    one = scorer_of(model_with({"name": "hash"}))
    one.grid(of_users(torch.tensor([0])), torch.arange(ITEMS), 0)
    assert len(one._precomputed) == 1


def test_only_routers_that_draw_or_compete_have_dependent_rows() -> None:
    dependent = {
        name
        for name, router in SETTINGS.items()
        if not model_with(router).draws(SEED).rows_are_independent
    }
    assert dependent >= {"expert_choice", "moesart, sampled"}
    assert dependent.isdisjoint({"moesart", "moesart, dense", "topk", "hash", "thor", "softmax"})


@given(st.lists(st.integers(-3, 3), max_size=30), st.integers(1, 12))
def test_the_largest_come_first_and_ties_go_to_the_lower_place(values: list[int], k: int) -> None:
    expected = sorted(range(len(values)), key=lambda place: (-values[place], place))[:k]
    assert largest(torch.tensor(values, dtype=torch.float32), k).tolist() == expected
