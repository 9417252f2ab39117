"""A few rows take another way than the forward pass to the same logits, for every router."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from recsys_moe.inference.few_rows import FEW_PRODUCTS, is_few, logits_of_few
from recsys_moe.inference.predictor import Predictor
from recsys_moe.routers import Routing
from tests.inference.test_ranking import ITEMS, SEED, SETTINGS, USERS, model_with


@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("name", sorted(SETTINGS))
@torch.inference_mode()
def test_the_logits_equal_those_of_the_forward_pass(name: str, rows: int) -> None:
    """The last user and item are the unseen ones; a router that draws starts at the same seed."""
    model = model_with(SETTINGS[name])
    user_B, item_B = torch.arange(rows) % (USERS + 1), 5 * torch.arange(rows) % (ITEMS + 1)
    model.reseed(SEED)
    expected = model(user_B, item_B).logits_BT
    model.reseed(SEED)
    torch.testing.assert_close(logits_of_few(model, user_B, item_B), expected)


@torch.inference_mode()
def test_rows_that_no_expert_takes_get_the_towers_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_with({"name": "topk"})

    def nobody(x_BD: torch.Tensor) -> Routing:
        weights_BE = torch.zeros(len(x_BD), 4)
        return Routing(weights_BE, weights_BE.bool())

    for router in model.routers:
        monkeypatch.setattr(router, "forward", nobody)
    expected = torch.cat([tower(torch.zeros(2, 6)) for tower in model.towers], -1)
    index_B = torch.tensor([0, 1])
    torch.testing.assert_close(logits_of_few(model, index_B, index_B), expected)


def test_scores_do_not_depend_on_the_way_taken(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = Predictor.load(run)
    users, items = [1, "nobody"], [2, 3]
    few = predictor.score(users, items)
    monkeypatch.setattr("recsys_moe.inference.few_rows.FEW_PRODUCTS", 0)
    many = predictor.score(users, items)
    for task, values in many.tasks.items():
        torch.testing.assert_close(few.tasks[task], values)
    assert set(few.calibrated) == {"watch"}
    assert predictor.score(users, items, calibrate=False).calibrated == {}


@pytest.mark.parametrize(
    ("experts", "k", "most"),
    [
        (4, 1, 64),  # 64 rows x all 4 experts = 256 products
        (4, 4, 64),
        (64, 1, 11),  # two tasks, each visits one: 11 rows x 22 experts = 242; 12 x 24 = 288
        (64, 64, 4),  # 4 rows x 64 experts = 256
    ],
)
def test_few_are_so_many_that_rows_times_experts_stay_small(
    experts: int, k: int, most: int
) -> None:
    model = model_with({"name": "topk", "k": k}, experts=experts)
    assert FEW_PRODUCTS == 256
    assert [is_few(model, rows) for rows in (0, 1, most, most + 1)] == [False, True, True, False]
