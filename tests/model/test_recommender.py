"""The interface of models: what a finished model keeps, and what its parts are added to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recsys_moe.inference.cold_start.model import ColdStartVectors, with_cold_users
from recsys_moe.kinds import Constant
from recsys_moe.model.biases import Biases
from recsys_moe.model.encoders.base import Encoder, Encoders
from recsys_moe.model.encoders.features import Features
from recsys_moe.model.ranker import Ranker
from recsys_moe.model.recommender import Recommender
from recsys_moe.model.registry import MODELS
from recsys_moe.model.request import Request, of_users
from recsys_moe.model.shape import ModelShape

USERS, ITEMS, TASKS, WIDTH = 6, 7, 2, 4
SETTINGS: dict[str, dict[str, Any]] = {
    "mtmoe": {"num_experts": 3, "expert_dim": 5, "tower_dims": (5,), "dropout": 0.0},
    "two_tower": {"rank": 3},
}


class Hour(Encoder):
    """A dynamic encoder: a vector times the context of the row."""

    is_static = False

    def __init__(self) -> None:
        super().__init__("user")
        self.vector_D = nn.Parameter(torch.randn(WIDTH))

    def forward(self, request: Request) -> Tensor:
        assert request.context is not None
        return request.context[:, :1] * self.vector_D


def model_of(name: str, *, encoders: bool = True) -> Recommender:
    """With a static and a dynamic encoder of users."""
    torch.manual_seed(0)
    kind = MODELS[name]
    settings = kind.Config(embedding_dim=WIDTH, **SETTINGS[name])  # type: ignore[call-arg]
    model = kind(settings, ModelShape(USERS, ITEMS, TASKS)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.7)
    if encoders:
        model.encoders = Encoders(users=features(), hour=Hour()).eval()
    return model


def features() -> Features:
    made = Features("user", rows=3, dim=WIDTH, entities=USERS)
    nn.init.normal_(made.table_RD)
    first_N = torch.tensor([0, 1, 2, 3, 3, 3, 3, 3])
    made.set_entries(first_N, torch.tensor([0, 1, 2]).int(), torch.ones(3))
    return made


def rows() -> Request:
    context_BC = torch.tensor([[0.5], [-1.0], [2.0], [0.0]])
    return Request(torch.tensor([0, 2, 5, USERS]), torch.tensor([1, 0, ITEMS, 3]), context_BC)


@pytest.mark.parametrize("name", sorted(MODELS))
@torch.no_grad()
def test_a_finished_model_holds_static_vectors_and_runs_dynamic_encoders(name: str) -> None:
    model, finished = model_of(name), model_of(name, encoders=False)
    state, cold_start = model.materialize()
    assert {key for key in state if key.startswith("encoders.")} == {"encoders.hour.vector_D"}
    assert cold_start.keys() == {"users.table_RD"}
    finished.encoders = Encoders(hour=Hour())
    finished.load_state_dict(state)
    torch.testing.assert_close(finished(rows()).logits_BT, model(rows()).logits_BT)


@pytest.mark.parametrize("name", sorted(MODELS))
@torch.no_grad()
def test_a_ranking_follows_a_dynamic_encoder(name: str) -> None:
    """The ranker of the model and chunks of its score: each pair as in a forward pass, with biases
    of users and items."""
    model = model_of(name, encoders=False)
    model.encoders = Encoders(hour=Hour()).eval()
    model.biases = Biases(USERS, ITEMS, [Constant(0.3, 1.5, 1.0)] * TASKS)
    nn.init.normal_(model.biases.user_UT), nn.init.normal_(model.biases.item_IT)
    users, item_N = rows(), torch.arange(ITEMS)
    for ranker in (model.ranker(model.draws(0), 4096), Ranker(model, model.draws(0), 4096)):
        for task in range(TASKS):
            found_UN = ranker.grid(users, item_N, task)
            for user, found_N in enumerate(found_UN):
                one = users.take(torch.full((ITEMS,), user)).with_items(item_N)
                torch.testing.assert_close(found_N, model(one).logits_BT[:, task])


@pytest.mark.parametrize("name", sorted(MODELS))
@torch.no_grad()
def test_cold_start_users_have_dynamic_encoders_too(name: str) -> None:
    model = model_of(name, encoders=False)
    model.encoders = Encoders(hour=Hour()).eval()
    added_D = torch.randn(WIDTH)
    cold = ColdStartVectors(added_D[None], torch.zeros(0, WIDTH), {}, [])
    request = Request(torch.tensor([-1]), torch.tensor([2]), torch.tensor([[2.0]]))
    found_D = with_cold_users(model, cold).encode_users(request)[0]
    hour: Any = model.encoders.hour
    expected_D = model.user_embedding.weight[USERS] + added_D + 2 * hour.vector_D
    torch.testing.assert_close(found_D, expected_D)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_vectors_of_users_do_not_depend_on_the_item_nor_those_of_items_on_the_user(
    name: str,
) -> None:
    model, other = model_of(name), torch.tensor([5, 5, 5, 5])
    with torch.no_grad():
        users = model.encode_users(rows()), model.encode_users(rows().with_items(other))
        items = model.encode_items(rows()), model.encode_items(rows()._replace(user=other))
    assert torch.equal(*users) and torch.equal(*items)


def test_a_request_without_items_ranks_as_one_with_any() -> None:
    model = model_of("two_tower", encoders=False)
    ranker, user_U = model.ranker(model.draws(0), 4096), torch.tensor([0, 3])
    with_items = Request(user_U, torch.tensor([6, 6]))
    first, second = (ranker.grid(u, torch.arange(ITEMS), 0) for u in (of_users(user_U), with_items))
    assert torch.equal(first, second)
