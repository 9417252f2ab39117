"""What goes past the experts: low-rank products of users and items, and effects of each."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recsys_moe.model.network import MultiTaskMoE
from recsys_moe.model.skip import Skip
from recsys_moe.routers import ROUTERS


def model_with(rank: int) -> MultiTaskMoE:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"embedding_dim": 4, "num_experts": 4, "expert_dim": 6}
    config = ROUTERS["softmax"].Config()
    return MultiTaskMoE(7, 8, 2, router=config, tower_dims=(5,), skip_rank=rank, **sizes).eval()


def test_a_task_has_its_effects_and_the_product_of_the_projections() -> None:
    """u = (2, 3), v = (5, 7), P u = u_1 + u_2 = 5 and 2 v_1 = 10: 50; b_u = 3 u_2 = 9,
    b_i = -v_2 = -7: 52 for task 1. Nothing is known of task 0: 0."""
    skip = Skip(2, 2, 1)
    with torch.no_grad():
        skip.user_TRW[1], skip.item_TRW[1] = torch.tensor([[1.0, 1]]), torch.tensor([[2.0, 0]])
        skip.alone_TD[1] = torch.tensor([0.0, 3, 0, -1])
    assert skip(torch.tensor([[2.0, 3, 5, 7]])).tolist() == [[0.0, 52.0]]


def test_one_task_is_a_column_of_all() -> None:
    torch.manual_seed(0)
    skip, x_BD = Skip(3, 4, 2), torch.randn(6, 8)
    for parameter in skip.parameters():
        torch.nn.init.normal_(parameter)
    for task in range(3):
        torch.testing.assert_close(skip.of_task(x_BD, task), skip(x_BD)[:, task])


def test_a_model_begins_as_without_it_and_every_part_of_it_can_learn() -> None:
    plain, model = model_with(0), model_with(3)
    own, other = plain.state_dict(), model.state_dict()
    assert all(torch.equal(value, other[name]) for name, value in own.items())
    names = {"skip.user_TRW", "skip.item_TRW", "skip.alone_TD"}
    assert other.keys() - own.keys() == names
    user_B, item_B = torch.tensor([0, 3, 7]), torch.tensor([8, 2, 5])
    logits_BT = model(user_B, item_B).logits_BT
    assert torch.equal(logits_BT, plain(user_B, item_B).logits_BT)
    assert model.skip is not None
    optimizer = torch.optim.SGD(model.skip.parameters(), lr=10.0)
    for _ in range(2):  # P = 0 at first: its users' side learns from the second step on
        optimizer.zero_grad()
        model(user_B, item_B).logits_BT.sum().backward()
        optimizer.step()
    assert all(parameter.grad.abs().amax(-1).all() for parameter in model.skip.parameters())


@pytest.mark.parametrize("rank", [1, 4])
def test_the_logits_are_those_of_the_towers_and_it(rank: int) -> None:
    plain, model = model_with(0), model_with(rank)
    assert model.skip is not None
    for parameter in model.skip.parameters():
        torch.nn.init.normal_(parameter)
    pair = torch.tensor([0, 3, 7]), torch.tensor([8, 2, 5])
    added_BT = model(*pair).logits_BT - plain(*pair).logits_BT
    torch.testing.assert_close(added_BT, model.skip(model.encode(*pair)))
