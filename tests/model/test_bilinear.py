"""The bilinear term: low-rank products of user and item vectors, and linear terms of each."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recsys_moe.model.bilinear import DiagonalTerm, ProjectedTerm
from recsys_moe.model.mtmoe import MultiTaskMoE
from recsys_moe.model.request import Request
from recsys_moe.model.shape import ModelShape
from recsys_moe.routers import ROUTERS


def model_with(rank: int, *, diagonal: bool = False) -> MultiTaskMoE:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"embedding_dim": 4, "num_experts": 4, "expert_dim": 6}
    term: dict[str, Any] = {"bilinear_rank": rank, "bilinear_diagonal": diagonal}
    config = ROUTERS["softmax"].Config()
    return MultiTaskMoE(
        MultiTaskMoE.Config(router=config, tower_dims=(5,), **term, **sizes), ModelShape(7, 8, 2)
    ).eval()


@pytest.mark.parametrize("diagonal", [True, False])
def test_a_model_in_float64_has_logits_in_float64(diagonal: bool) -> None:
    ids = torch.tensor([0, 3])
    assert (
        model_with(2, diagonal=diagonal).double()(Request(ids, ids)).logits_BT.dtype
        == torch.float64
    )


def test_a_task_has_linear_terms_and_the_product_of_the_projections() -> None:
    """u = (2, 3), v = (5, 7), P u = u_1 + u_2 = 5 and 2 v_1 = 10: 50; b_u = 3 u_2 = 9,
    b_i = -v_2 = -7: 52 for task 1. Nothing is known of task 0: 0."""
    term = ProjectedTerm(2, 2, 1)
    with torch.no_grad():
        term.user_TRW[1], term.item_TRW[1] = torch.tensor([[1.0, 1]]), torch.tensor([[2.0, 0]])
        term.alone_TD[1] = torch.tensor([0.0, 3, 0, -1])
    assert term(torch.tensor([[2.0, 3, 5, 7]])).tolist() == [[0.0, 52.0]]


def test_a_diagonal_term_weighs_each_dimension_below_1() -> None:
    """u = (2, 3), v = (5, 7); of rank 1: tanh(0.5) x 2 x 5, and b_i = 4 v_2 = 28 for task 0."""
    term = DiagonalTerm(2, 2, 1)
    with torch.no_grad():
        term.scale_TR[:] = torch.tensor([[0.5], [-100.0]])
        term.alone_TD[0] = torch.tensor([0.0, 0, 0, 4])
    found = term(torch.tensor([[2.0, 3, 5, 7]]))
    torch.testing.assert_close(found, torch.tensor([[0.46211716 * 10 + 28, -10.0]]))


@pytest.mark.parametrize("kind", [ProjectedTerm, DiagonalTerm])
def test_one_task_is_a_column_of_all(kind: type[ProjectedTerm | DiagonalTerm]) -> None:
    torch.manual_seed(0)
    term, x_BD = kind(3, 4, 2), torch.randn(6, 8)
    for parameter in term.parameters():
        torch.nn.init.normal_(parameter)
    for task in range(3):
        torch.testing.assert_close(term.of_task(x_BD, task), term(x_BD)[:, task])


def test_a_model_begins_as_without_it_and_every_part_of_it_can_learn() -> None:
    plain, model = model_with(0), model_with(3)
    own, other = plain.state_dict(), model.state_dict()
    assert all(torch.equal(value, other[name]) for name, value in own.items())
    names = {"bilinear.user_TRW", "bilinear.item_TRW", "bilinear.alone_TD"}
    assert other.keys() - own.keys() == names
    request = Request(torch.tensor([0, 3, 7]), torch.tensor([8, 2, 5]))
    logits_BT = model(request).logits_BT
    assert torch.equal(logits_BT, plain(request).logits_BT)
    assert model.bilinear is not None
    optimizer = torch.optim.SGD(model.bilinear.parameters(), lr=10.0)
    for _ in range(2):  # P = 0 at first: its users' side learns from the second step on
        optimizer.zero_grad()
        model(request).logits_BT.sum().backward()
        optimizer.step()
    assert all(parameter.grad.abs().amax(-1).all() for parameter in model.bilinear.parameters())


def test_a_diagonal_term_begins_with_the_product_of_the_vectors() -> None:
    """Vectors begin within 0.05: a logit moves by 4 x 0.05 x 0.05 x tanh(2) at most."""
    plain, model = model_with(0), model_with(4, diagonal=True)
    own, other = plain.state_dict(), model.state_dict()
    assert all(torch.equal(value, other[name]) for name, value in own.items())
    assert other.keys() - own.keys() == {"bilinear.scale_TR", "bilinear.alone_TD"}
    request = Request(torch.tensor([0, 3, 7]), torch.tensor([8, 2, 5]))
    moved_BT = model(request).logits_BT - plain(request).logits_BT
    assert 0 < moved_BT.abs().max() <= 0.01 * 0.9641
    assert model.bilinear is not None
    moved_BT.sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.bilinear.parameters())


@pytest.mark.parametrize("rank", [1, 4])
@pytest.mark.parametrize("diagonal", [True, False])
def test_the_logits_are_those_of_the_towers_and_it(rank: int, diagonal: bool) -> None:
    plain, model = model_with(0), model_with(rank, diagonal=diagonal)
    assert model.bilinear is not None
    for parameter in model.bilinear.parameters():
        torch.nn.init.normal_(parameter)
    request = Request(torch.tensor([0, 3, 7]), torch.tensor([8, 2, 5]))
    added_BT = model(request).logits_BT - plain(request).logits_BT
    torch.testing.assert_close(added_BT, model.bilinear(model.encode(request)))
