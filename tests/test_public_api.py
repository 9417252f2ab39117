"""`from recsys_moe import ...`: the layer alone, for those who bring the rest.

Axes: B batch, T tasks, E experts, D input width, H expert width.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import recsys_moe
from recsys_moe import Experts, MoE, Router, Routing, mix, router
from recsys_moe.errors import ConfigError
from recsys_moe.model.moe import naive_moe
from recsys_moe.model.penalties import switch, trimmed_lasso
from recsys_moe.routers.stream import RandomStream

D, E, H = 6, 8, 5
SIZES = {"input_dim": D, "num_experts": E}


def layer_of(*names: str, seed: int | None = None) -> MoE:
    return MoE(Experts(E, D, H), [router(name, **SIZES) for name in names], seed=seed).train()


def selections(layer: MoE, rows: int = 64) -> list[Tensor]:
    x_BD = torch.randn(rows, D, generator=torch.Generator().manual_seed(9))
    return [routing.selected_BE for routing in layer(x_BD)[1]]


def test_all_public_names_are_there_and_no_other() -> None:
    for name in recsys_moe.__all__:
        assert getattr(recsys_moe, name).__name__ == name
        assert name in dir(recsys_moe)
    with pytest.raises(AttributeError, match="no attribute 'moe'"):
        _ = recsys_moe.moe


def test_a_router_is_made_by_name_with_its_settings() -> None:
    made = router("moesart", **SIZES, k=3)
    assert isinstance(made, Router)
    assert (made.config.k, made.shape.num_experts, made.max_selected) == (3, E, 3)
    users = router("hash", **SIZES, num_users=4)
    assert users(torch.randn(2, D), torch.tensor([0, 4])).selected_BE.sum(1).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("moesrat", {}, "did you mean 'moesart'"),
        ("moesart", {"kk": 2}, "router moesart has no setting 'kk'.*'k'"),
        ("moesart", {"k": 1}, "must .*got 1"),
        ("topk", {"k": 9}, r"must .*got 9"),
        ("topk", {"k": True}, "router topk: k: input .*got Tr"),
        ("topk", {"num_experts": 0}, "input_dim .*got 6 and 0"),
        ("moesart", {"temperature": 0.0}, "router moesart: temperature: .*greater .*got 0.0"),
    ],
)
def test_a_wrong_router_is_refused_in_words(
    name: str, settings: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        router(name, **{**SIZES, **settings})


def test_two_tasks_draw_different_experts_by_construction() -> None:
    """Alike gates and fresh streams: were these equal, both tasks would draw the same experts."""
    layer = layer_of("moesart", "moesart")
    first, second = layer.routers
    second.load_state_dict(first.state_dict())
    assert not torch.equal(*selections(layer))


def test_draws_follow_torchs_seed_and_go_on_from_there() -> None:
    def drawn(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        layer = layer_of("moesart", "thor")
        return [*selections(layer), *selections(layer)]

    one, again, other = drawn(1), drawn(1), drawn(2)
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not torch.equal(one[0], other[0])
    assert not torch.equal(one[0], one[2])  # the next step draws anew


def test_a_seed_of_the_layers_own_stands_over_torchs() -> None:
    def drawn(torch_seed: int) -> list[Tensor]:
        layer = layer_of("moesart", "moesart", seed=5)
        for one in layer.routers:
            nn.init.zeros_(one.gate.weight)
        torch.manual_seed(torch_seed)
        return selections(layer)

    assert all(torch.equal(a, b) for a, b in zip(drawn(1), drawn(2), strict=True))


def test_copies_have_streams_of_their_own_unless_a_seed_was_given() -> None:
    layer = layer_of("moesart")
    twin = copy.deepcopy(layer)  # before the first draw
    assert not torch.equal(selections(layer)[0], selections(twin)[0])
    layer, seeded = layer_of("moesart"), layer_of("moesart", seed=3)
    selections(layer), selections(seeded)
    first, second = (selections(copy.deepcopy(layer))[0] for _ in range(2))
    assert not torch.equal(first, second)
    first, second = (selections(copy.deepcopy(seeded))[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MoE(Experts(E, D, H), []), r"a list .*got \[\]"),
        (lambda: MoE(Experts(E, D, H), router("topk", **SIZES)), "a list with a router per task"),
        (lambda: MoE(Experts(E, D, H), [router("topk", **SIZES)], "spase"), "got 'spase'"),
        (
            lambda: MoE(Experts(E, D, H), [router("topk", input_dim=D, num_experts=4)]),
            "input_dim=6 .*TopKRouter",
        ),
        (lambda: layer_of("hash")(torch.randn(2, D)), "needs the user of each row"),
        (lambda: Experts(0, D, H), "must .*got 0"),
        (lambda: Experts(E, D, H, dropout=1.0), r"dropout .*got 1.0"),
    ],
)
def test_a_layer_that_cannot_be_is_refused(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_building_a_layer_leaves_torchs_generator_to_the_weights() -> None:
    """Streams are seeded at their first draw, so that they change no initial weight."""
    torch.manual_seed(0)
    nn.Linear(D, E)
    expected = torch.rand(1)
    torch.manual_seed(0)
    nn.Linear(D, E)
    RandomStream()
    assert torch.equal(torch.rand(1), expected)


def test_the_auxiliary_loss_sums_over_tasks_with_its_weights() -> None:
    """0.1 x trimmed lasso (k = 2) + 0.01 x switch, of both tasks."""
    layer = layer_of("moesart", "topk")
    _, routings = layer(torch.randn(32, D))
    expected = sum(
        0.1 * trimmed_lasso(routing.probs_BE, 2)
        + 0.01 * switch(routing.probs_BE, routing.selected_BE)
        for routing in routings
    )
    loss = layer.auxiliary_loss(routings, trimmed_lasso=0.1, switch=0.01)
    torch.testing.assert_close(loss, expected)
    assert loss.requires_grad and layer.auxiliary_loss(routings).item() == 0


def test_the_auxiliary_loss_holds_the_routers_own_losses() -> None:
    """The entropy of a learned permutation, weight 0.5."""
    own = router("topk", **SIZES, permutation=True, permutation_entropy=0.5)
    layer = MoE(Experts(E, D, H), [own]).train()
    _, (routing,) = layer(torch.randn(4, D))
    expected = 0.5 * routing.losses["permutation"]
    torch.testing.assert_close(layer.auxiliary_loss([routing]), expected)


def test_an_unknown_penalty_is_refused_even_with_weight_0() -> None:
    layer = layer_of("topk")
    _, routings = layer(torch.randn(4, D))
    with pytest.raises(ConfigError, match="unknown penalty 'swich'.*'switch'"):
        layer.auxiliary_loss(routings, swich=0.0)


def test_set_epoch_reaches_every_router() -> None:
    own = [router("topk", **SIZES, permutation=True, permutation_epochs=2.0) for _ in range(2)]
    layer = MoE(Experts(E, D, H), own).train()
    layer.set_epoch(1.0)
    assert [float(one.permutation.progress) for one in own] == [0.5, 0.5]
    layer.set_epoch(2.0)
    assert all(one.permutation.is_frozen for one in own)


def test_on_step_end_reaches_every_router_with_the_sum_over_processes() -> None:
    layer, counts = layer_of("topk", "vmoe"), [1.0, 2.0]
    found: list[Tensor] = []
    for own, count in zip(layer.routers, counts, strict=True):
        own.on_step_end = lambda all_sum, c=count: found.append(all_sum(torch.tensor(c)))
    layer.on_step_end(lambda values: 2 * values)
    layer.on_step_end()
    assert [float(value) for value in found] == [2.0, 4.0, 1.0, 2.0]


@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 10**6), st.booleans())
def test_mix_equals_the_naive_mixture_in_values_and_gradients(
    rows: int, experts: int, seed: int, whole: bool
) -> None:
    """Experts as modules, on the rows that chose them or on all rows."""
    g = torch.Generator().manual_seed(seed)
    x_BD = torch.randn(rows, D, generator=g, dtype=torch.float64, requires_grad=True)
    selected_BE = torch.rand(rows, experts, generator=g) < 0.5
    raw_BE = torch.rand(rows, experts, generator=g, dtype=torch.float64)
    weights_BE = (raw_BE * selected_BE).requires_grad_()
    kernel_EDH = torch.randn(experts, D, H, generator=g, dtype=torch.float64, requires_grad=True)
    bias_EH = torch.randn(experts, H, generator=g, dtype=torch.float64, requires_grad=True)
    routing = Routing(weights_BE, selected_BE)

    def output(expert: int) -> Tensor:
        row_R = torch.arange(rows) if whole else routing.rows(expert)
        return torch.relu(x_BD[row_R] @ kernel_EDH[expert] + bias_EH[expert])

    mixed_BH = mix(routing, [output(expert) for expert in range(experts)])
    naive_BH = naive_moe(x_BD, weights_BE[:, None], kernel_EDH, bias_EH)[:, 0]
    torch.testing.assert_close(mixed_BH, naive_BH)
    leaves = [x_BD, kernel_EDH, bias_EH, weights_BE]
    probe = torch.randn(mixed_BH.shape, generator=g, dtype=torch.float64)
    ours = torch.autograd.grad((mixed_BH * probe).sum(), leaves, allow_unused=True)
    theirs = torch.autograd.grad((naive_BH * probe).sum(), leaves)
    for name, mine, naive in zip("xkbw", ours, theirs, strict=True):
        # Unselected weights get no gradient: no router could use it.
        expected = naive * selected_BE if name == "w" else naive
        torch.testing.assert_close(torch.zeros_like(naive) if mine is None else mine, expected)


def test_mix_takes_outputs_of_any_shape() -> None:
    """Two images of 3 x 4: 0.25 of the first expert's and 0.75 of the second's."""
    routing = Routing(torch.tensor([[0.25, 0.75]] * 2), torch.ones(2, 2, dtype=torch.bool))
    images = [torch.ones(2, 3, 4), 2 * torch.ones(2, 3, 4)]
    assert torch.equal(mix(routing, images), torch.full((2, 3, 4), 0.25 + 2 * 0.75))


@pytest.mark.parametrize(
    ("sizes", "said"),
    [([2], "an .*got 1"), ([1, 3], "expert 1 .*2 rows .*got 3")],
)
def test_mix_refuses_outputs_that_fit_no_rows(sizes: list[int], said: str) -> None:
    selected_BE = torch.tensor([[True, False], [False, True], [False, True], [False, False]])
    routing = Routing(selected_BE.float(), selected_BE)
    with pytest.raises(ValueError, match=said):
        mix(routing, [torch.ones(size, H) for size in sizes])
