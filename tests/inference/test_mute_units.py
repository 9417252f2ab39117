"""Tower units that cannot move a score are left out; every score stays."""

from __future__ import annotations

import copy

import pytest
import torch

from recsys_moe.inference.scoring import tower_pruning as mute_units
from recsys_moe.inference.scoring.tower_pruning import without_mute_units
from recsys_moe.model.network import MultiTaskMoE
from recsys_moe.routers import find_router


@pytest.fixture(autouse=True)
def any_number_may_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mute_units, "MULTIPLE", 1)


def model_with(router: str = "moesart", tower_dims: tuple[int, ...] = (5,)) -> MultiTaskMoE:
    torch.manual_seed(0)
    sizes = {"embedding_dim": 4, "num_experts": 4, "expert_dim": 6}
    config = find_router(router).Config(name=router)
    model = MultiTaskMoE(7, 9, 2, router=config, tower_dims=tower_dims, **sizes).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return model


@torch.no_grad()
def logits(model: MultiTaskMoE) -> torch.Tensor:
    """In float64: that fewer units are added up in another order moves them by 1e-14 or so."""
    users, items = torch.arange(8).repeat_interleave(10), torch.arange(10).repeat(8)
    return copy.deepcopy(model).double()(users, items).logits_BT


def widths(model: MultiTaskMoE, task: int) -> list[int]:
    return [layer.out_features for layer in model.towers[task] if hasattr(layer, "out_features")]


def test_units_that_nothing_reads_or_that_never_fire_go_and_scores_stay() -> None:
    model, first = model_with(), model_with()
    with torch.no_grad():
        for each in (model, first):
            each.towers[0][2].weight[0, 1] = 0  # nothing reads unit 1
            each.towers[0][0].weight[3], each.towers[0][0].bias[3] = 0, -1  # unit 3 never fires
    smaller = without_mute_units(model)
    assert [widths(smaller, 0), widths(smaller, 1)] == [[3, 1], [5, 1]]
    torch.testing.assert_close(logits(smaller), logits(model), rtol=1e-12, atol=1e-12)
    assert widths(model, 0) == [5, 1]  # that of the caller is as it was
    torch.testing.assert_close(logits(model), logits(first), rtol=0, atol=0)


def test_all_that_goes_from_a_layer_moves_a_logit_by_less_than_the_tolerance() -> None:
    """Units of a 1e-9 or so each: some go, and together they could move no logit by 1e-7."""
    model = model_with(tower_dims=(64,))
    with torch.no_grad():
        model.towers[0][2].weight[0, :60] *= torch.logspace(-12, -6, 60)
    smaller = without_mute_units(model)
    assert 4 < widths(smaller, 0)[0] < 64
    mixed_BH = torch.rand(1000, 6).double() * 4  # about what experts can put out
    exact, fewer = (each.towers[0].double()(mixed_BH) for each in (model, smaller))
    assert 0 < float((exact - fewer).detach().abs().max()) <= 1e-7


def test_what_goes_is_counted_together() -> None:
    """60 units that are always 1 move the logit by 4e-8 each: two of them stay below 1e-7."""
    model = model_with(tower_dims=(64,))
    with torch.no_grad():
        first, head = model.towers[0][0], model.towers[0][2]
        first.weight[:60], first.bias[:60], head.weight[0, :60] = 0, 1, 4e-8
        first.bias[60:], head.weight[0, 60:] = 1, 1
    assert widths(without_mute_units(model), 0) == [62, 1]


def constant_experts(model: MultiTaskMoE, *outputs: float) -> None:
    """Each expert says one number, whatever it is shown."""
    with torch.no_grad():
        model.moe.experts.kernel_EDH.zero_()
        model.moe.experts.bias_EH.copy_(torch.tensor(outputs)[:, None])


def needs(model: MultiTaskMoE, least: float) -> None:
    """Unit 3 of the first tower fires where the first number of the mixture is above `least`."""
    with torch.no_grad():
        model.towers[0][0].weight[3] = torch.eye(6)[0]
        model.towers[0][0].bias[3] = -least
        model.towers[0][2].weight[0, 3] = 1


def test_a_unit_stays_that_one_large_expert_can_fire() -> None:
    model = model_with()
    constant_experts(model, 8, 1, 1, 1)
    needs(model, 7.5)
    assert widths(without_mute_units(model), 0) == [5, 1]
    needs(model, 8.5)
    assert widths(without_mute_units(model), 0) == [4, 1]


def test_a_unit_stays_that_weights_of_more_than_one_in_sum_can_fire() -> None:
    """Rows of `sparsemixer` sum to k = 2 at most."""
    model = model_with("sparsemixer")
    constant_experts(model, 8, 8, 8, 8)
    needs(model, 15.5)
    assert widths(without_mute_units(model), 0) == [5, 1]
    needs(model, 16.5)
    assert widths(without_mute_units(model), 0) == [4, 1]


def test_where_vectors_hold_more_than_ids_all_units_stay() -> None:
    model = model_with()
    model.encoders = torch.nn.Identity()
    with torch.no_grad():
        model.towers[0][2].weight[0, 1] = 0
    assert without_mute_units(model) is model


def test_a_unit_of_the_first_layer_goes_whose_effect_the_second_one_stops() -> None:
    model = model_with(tower_dims=(5, 4))
    with torch.no_grad():
        model.towers[1][2].weight[:, 2] = 0  # the second layer does not read unit 2 of the first
        model.towers[1][4].weight[0, :2] = 0  # and the head not its units 0 and 1
    smaller = without_mute_units(model)
    assert widths(smaller, 1) == [4, 2, 1]
    torch.testing.assert_close(logits(smaller), logits(model), rtol=1e-12, atol=1e-12)


def test_a_tower_without_units_that_matter_says_its_bias() -> None:
    model = model_with()
    with torch.no_grad():
        model.towers[0][2].weight.zero_()
    smaller = without_mute_units(model)
    assert widths(smaller, 0) == [0, 1]
    assert logits(smaller)[:, 0].unique().tolist() == model.towers[0][2].bias.tolist()


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so_that_it_shows(broken: float) -> None:
    model = model_with()
    with torch.no_grad():
        model.item_embedding.weight[3, 0] = broken
    smaller = without_mute_units(model)
    assert widths(smaller, 0) == [5, 1]
    assert not logits(smaller).isfinite().all()


def test_where_outputs_have_no_bound_all_units_stay() -> None:
    """`relu` weighs without a bound, and `default_moe` adds running means."""
    for router in ("relu", "default_moe"):
        model = model_with(router)
        with torch.no_grad():
            model.towers[0][2].weight[0, 1] = 0
        assert widths(without_mute_units(model), 0) == [5, 1], router


def test_what_is_left_fills_vectors_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50 units the last 18 matter: 2 x 16 stay, with them the first 14 of the 32 others."""
    monkeypatch.setattr(mute_units, "MULTIPLE", 16)
    model = model_with(tower_dims=(50,))
    with torch.no_grad():
        model.towers[0][2].weight[0, :32] = 0
        model.towers[0][0].bias.fill_(9)  # so that the others can fire
    smaller = without_mute_units(model)
    assert widths(smaller, 0) == [32, 1] and widths(smaller, 1) == [50, 1]
    kept = [*range(14), *range(32, 50)]
    assert torch.equal(smaller.towers[0][0].weight, model.towers[0][0].weight[kept])
    torch.testing.assert_close(logits(smaller), logits(model), rtol=1e-12, atol=1e-12)
