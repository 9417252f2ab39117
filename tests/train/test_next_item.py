"""The loss of the next item against its naive twin."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from recsys_moe.train import next_item
from recsys_moe.train.next_item import SoftmaxLoss


def test_the_softmax_loss_equals_cross_entropy_in_values_and_gradients(monkeypatch) -> None:
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
