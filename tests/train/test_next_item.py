"""The loss of the next item against its naive twin."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from recsys_moe.model.request import Request
from recsys_moe.train import next_item
from recsys_moe.train.next_item import NextItem, SoftmaxLoss


def test_the_softmax_loss_equals_cross_entropy_in_values_and_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(next_item, "CELLS", {"cpu": 7 * 50})  # 7 rows at a time: 20 in 3 parts
    generator = torch.Generator().manual_seed(0)
    x_PR = torch.randn(20, 5, generator=generator, requires_grad=True)
    y_NR = torch.randn(50, 5, generator=generator, requires_grad=True)
    item_P = torch.randint(50, (20,), generator=generator)
    naive = F.cross_entropy(x_PR @ y_NR.t(), item_P, reduction="sum")
    fast = SoftmaxLoss.apply(x_PR, y_NR, item_P)
    torch.testing.assert_close(fast, naive)
    for one, two in zip(
        *(torch.autograd.grad(3 * v, [x_PR, y_NR]) for v in (fast, naive)), strict=True
    ):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


def test_no_positive_rows_are_a_loss_of_zero() -> None:
    empty, items = torch.zeros(0, 3, requires_grad=True), torch.ones(4, 3)
    assert SoftmaxLoss.apply(empty, items, torch.zeros(0).long()).item() == 0


class Product:
    """A model whose vectors are its factors."""

    encoders = None

    def __init__(self, items: int) -> None:
        self.num_items = items
        self.item_ND = torch.randn(items, 4, generator=torch.Generator().manual_seed(1))

    def encode_items(self, request: Request) -> torch.Tensor:
        return self.item_ND[request.item]

    def product(
        self, user_BD: torch.Tensor, item_ND: torch.Tensor, task: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return user_BD, item_ND


def test_drawn_items_estimate_the_softmax_of_a_large_catalogue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mean of exp is estimated without bias; of 1,024 draws of 3,000 the log is off by little:
    the spread of exp of scores of about N(0, 1) is e^.5 sqrt(e - 1) = 2.2, over sqrt(1024) and
    e^.5 a relative error of 4%, over 20 seeds 1%."""
    loss, model = NextItem(1.0, 0, 0), Product(3000)
    user_PD = 0.5 * torch.randn(30, 4, generator=torch.Generator().manual_seed(2))
    item_P = torch.arange(30)
    full = loss._full(model, user_PD, item_P, 0)  # type: ignore[arg-type]
    drawn = [loss._sampled(model, user_PD, item_P, seed) for seed in range(20)]  # type: ignore[arg-type]
    assert abs(float(torch.stack(drawn).mean()) / 30 - float(full) / 30) < 0.03
