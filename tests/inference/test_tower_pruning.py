"""Tower units that cannot move a score are left out; every score stays."""

from __future__ import annotations

import copy

import pytest
import torch

from recsys_moe.model import tower_pruning
from recsys_moe.model.mtmoe import MultiTaskMoE
from recsys_moe.model.request import Request
from recsys_moe.model.shape import ModelShape
from recsys_moe.model.tower_pruning import with_pruned_towers
from recsys_moe.routers import find_router


@pytest.fixture(autouse=True)
def any_number_may_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tower_pruning, "MULTIPLE", 1)


@torch.no_grad()
def model_with(router: str = "moesart", tower_dims: tuple[int, ...] = (5,)) -> MultiTaskMoE:
    torch.manual_seed(0)
    sizes = {"embedding_dim": 4, "num_experts": 4, "expert_dim": 6}
    config = find_router(router).Config(name=router)
    model = MultiTaskMoE(
        MultiTaskMoE.Config(router=config, tower_dims=tower_dims, **sizes), ModelShape(7, 9, 2)
    ).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7).requires_grad_(False)
    return model


def pruned(model: MultiTaskMoE) -> list[list[int]]:
    """Widths of the smaller towers, by task. In float64, where fewer units are added up in another
    order, scores move by 1e-14 or so; the caller's model stays as it is."""
    before = copy.deepcopy(model.state_dict())
    smaller = with_pruned_towers(model)
    request = Request(torch.arange(8).repeat_interleave(10), torch.arange(10).repeat(8))
    first, second = (copy.deepcopy(m).double()(request).logits_BT for m in (model, smaller))
    torch.testing.assert_close(second, first, rtol=0, atol=1e-7, equal_nan=True)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0, equal_nan=True)
    return [
        [part.out_features for part in tower if hasattr(part, "out_features")]
        for tower in smaller.towers
    ]


def test_units_that_nothing_reads_or_that_never_fire_go() -> None:
    model = model_with()
    model.towers[0][2].weight[0, 1] = 0  # nothing reads unit 1
    model.towers[0][0].weight[3], model.towers[0][0].bias[3] = 0, -1  # unit 3 never fires
    assert pruned(model) == [[3, 1], [5, 1]]
    model.towers[0][2].weight.zero_()
    assert pruned(model) == [[0, 1], [5, 1]]  # it says its bias


def test_all_that_goes_from_a_layer_moves_a_logit_by_less_than_the_tolerance() -> None:
    """60 units that are always 1 move the logit by 4e-8 each: two of them stay below 1e-7."""
    model = model_with(tower_dims=(64,))
    first, head = model.towers[0][0], model.towers[0][2]
    first.weight[:60], first.bias[:60], head.weight[0, :60] = 0, 1, 4e-8
    first.bias[60:], head.weight[0, 60:] = 1, 1
    assert pruned(model)[0] == [62, 1]


@pytest.mark.parametrize(("router", "most"), [("moesart", 8), ("sparsemixer", 16)])
def test_a_unit_stays_that_one_large_expert_or_weights_can_fire(router: str, most: int) -> None:
    """An expert says 8; weights of `moesart` sum to 1, those of `sparsemixer` to k = 2 at most."""
    model = model_with(router)
    model.moe.experts.kernel_EDH.zero_()
    model.moe.experts.bias_EH.fill_(1)
    model.moe.experts.bias_EH[0] = 8
    for least, left in ((most - 0.5, 5), (most + 0.5, 4)):
        model.towers[0][0].weight[3] = torch.eye(6)[0]
        model.towers[0][0].bias[3], model.towers[0][2].weight[0, 3] = -least, 1
        assert pruned(model)[0] == [left, 1]


def test_all_units_stay_where_no_bound_is_known() -> None:
    """Vectors of more than ids, `relu` without a bound, running means, and what is not finite."""
    encoded, broken = model_with(), model_with()
    encoded.encoders = torch.nn.Identity()
    broken.item_embedding.weight[3, 0] = torch.nan
    for model in (encoded, broken, model_with("relu"), model_with("default_moe")):
        model.towers[0][2].weight[0, 1] = 0
        smaller = with_pruned_towers(model)
        assert smaller is model or smaller.towers[0][0].out_features == 5


def test_what_is_left_fills_vectors_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50 units the last 18 matter: 2 x 16 stay, with them the first 14 of the 32 others."""
    monkeypatch.setattr(tower_pruning, "MULTIPLE", 16)
    model = model_with(tower_dims=(50,))
    model.towers[0][2].weight[0, :32] = 0
    model.towers[0][0].bias.fill_(9)  # so that the others can fire
    assert pruned(model) == [[32, 1], [50, 1]]
    kept = [*range(14), *range(32, 50)]
    assert torch.equal(
        with_pruned_towers(model).towers[0][0].weight, model.towers[0][0].weight[kept]
    )
