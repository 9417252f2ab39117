"""Load balancing against golden numbers, and what each penalty does to each router.

Axes: B batch, E experts.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError
from recsys_moe.model.coupling import COUPLING
from recsys_moe.model.penalties import (
    DISAGREEMENT,
    PENALTIES,
    importance,
    noisy_load,
    penalty,
    smooth_load,
    squared_variation,
    switch,
    z_loss,
)
from recsys_moe.routers import ROUTERS, RouterShape, Routing
from recsys_moe.routers.selection import largest_k
from recsys_moe.routers.settings import PENALTY_NAMES
from recsys_moe.routers.topk import TopKRouter

LOGITS = torch.tensor([[2.0, 1, 0], [2, 0, 0], [1, 1, 3], [0, 0, 0]], dtype=torch.float64)
NOISE = torch.tensor(
    [[0.1, -0.2, 0], [0, 0.3, -0.1], [0.2, 0, 0], [0.1, 0.2, -0.3]], dtype=torch.float64
)
PROBS = LOGITS.softmax(-1)  # column means P = [.473017, .197769, .329214]


def test_switch_is_1_at_balance_and_the_number_of_experts_at_collapse() -> None:
    even = torch.eye(4)
    assert switch(even, even.bool()).item() == 1
    one = torch.eye(4)[[2, 2, 2]]
    assert switch(one, one.bool()).item() == 4


GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "switch": lambda o: switch(o.softmax(-1), largest_k(LOGITS, 2)),
    "importance": lambda o: importance(o.softmax(-1)),
    "load": lambda o: smooth_load(o, o + NOISE, 2),
    "noisy_load": lambda o: noisy_load(o, o + NOISE, 0.5 + o.sigmoid(), 2),
    "z_loss": z_loss,
}


@pytest.mark.parametrize("name", sorted(GRADIENTS))
def test_gradients_equal_finite_differences(name: str) -> None:
    torch.autograd.gradcheck(GRADIENTS[name], LOGITS.clone().requires_grad_())


@pytest.mark.parametrize("scale", [0.0, 1e4])
@pytest.mark.parametrize("name", sorted(GRADIENTS))
def test_zero_and_huge_logits_have_finite_values_and_gradients(name: str, scale: float) -> None:
    logits = (scale * LOGITS.float()).requires_grad_()
    value = GRADIENTS[name](logits)
    value.backward()
    assert torch.isfinite(value) and torch.isfinite(logits.grad).all()


def test_variation_of_a_single_expert_is_0() -> None:
    assert squared_variation(torch.tensor([3.0])).item() == 0


def route(name: str, **settings: object) -> tuple[Routing, int, list[torch.nn.Parameter]]:
    torch.manual_seed(0)
    router = ROUTERS[name](ROUTERS[name].Config(**settings), RouterShape(6, 8))
    return router.train()(torch.randn(16, 6)), router.kept, list(router.parameters())


def test_penalties_add_up_with_their_weights() -> None:
    routing, kept, _ = route("vmoe")
    single = {name: penalty({name: 1.0}, routing, kept) for name in PENALTIES}
    together = penalty({"switch": 0.5, "z_loss": 2.0, "load": 0.0}, routing, kept)
    torch.testing.assert_close(together, 0.5 * single["switch"] + 2 * single["z_loss"])


def test_switch_counts_draws_with_replacement_and_not_distinct_experts() -> None:
    """f = r / k = (3/4, 1/4): 8 (.75 * .5 + .25 * .3) = 3.6; distinct ones would give 3.2."""
    probs_BE = torch.tensor([[0.5, 0.3, *[0.2 / 6] * 6]])
    counts_BE = torch.tensor([[3, 1, 0, 0, 0, 0, 0, 0]])
    routing = Routing(probs_BE, counts_BE > 0, probs_BE, probs_BE.log(), counts_BE=counts_BE)
    assert penalty({"switch": 1.0}, routing, 4) == pytest.approx(3.6)
    assert penalty({"switch": 1.0}, routing, 8) == pytest.approx(3.6)  # also with k = n


def test_moesart_tells_how_often_it_drew_whom() -> None:
    """Weights of strategy (iii) are r / k."""
    routing, kept, _ = route("moesart", k=4, replacement=True, strategy="iii")
    assert routing.counts_BE is not None and routing.counts_BE.max() > 1
    torch.testing.assert_close(routing.weights_BE, routing.counts_BE / 4)
    share_E = routing.weights_BE.mean(0)
    expected = 8 * (share_E * routing.probs_BE.mean(0)).sum()  # type: ignore[union-attr]
    torch.testing.assert_close(penalty({"switch": 1.0}, routing, kept), expected)
    assert route("moesart", sampler="sequential")[0].counts_BE is None


def test_load_uses_the_noise_of_the_router() -> None:
    routing = Routing(PROBS, largest_k(LOGITS, 2), PROBS, LOGITS + NOISE, clean_logits_BE=LOGITS)
    assert penalty({"load": 1.0}, routing, 2) == pytest.approx(0.070194, abs=1e-6)
    routing.noise_scale_BE = torch.full_like(LOGITS, 0.5)
    assert penalty({"load": 1.0}, routing, 2) == pytest.approx(0.057207, abs=1e-6)


def test_load_teaches_the_size_of_the_topk_noise() -> None:
    torch.manual_seed(0)
    router = TopKRouter(TopKRouter.Config(noise=True), RouterShape(6, 8)).train()
    penalty({"load": 1.0}, router(torch.randn(16, 6)), router.kept).backward()
    assert (router.noise_gate.weight.grad != 0).any()


def test_topk_noise_has_the_size_of_its_own_gate_and_stops_at_evaluation() -> None:
    """W_noise = 0: softplus(0) + .01 = ln 2 + .01 = .703147; 32,000 draws, standard error .003."""
    router = TopKRouter(TopKRouter.Config(noise=True), RouterShape(2, 4)).train()
    x_BD = torch.randn(8000, 2)
    routing = router(x_BD)
    noise_BE = routing.logits_BE - routing.clean_logits_BE
    assert noise_BE.std().item() == pytest.approx(0.703147, abs=0.012)
    assert (routing.noise_scale_BE - 0.703147).abs().max() < 1e-5
    quiet = router.eval()(x_BD)
    assert quiet.clean_logits_BE is None
    torch.testing.assert_close(quiet.logits_BE, routing.clean_logits_BE)


def test_topk_noise_teaches_its_gate_through_the_weights() -> None:
    router = TopKRouter(TopKRouter.Config(noise=True), RouterShape(6, 8)).train()
    (router(torch.randn(16, 6)).weights_BE @ torch.arange(8.0)).sum().backward()
    assert (router.noise_gate.weight.grad != 0).any()


def test_topk_with_one_expert_learns_nothing_from_the_tasks() -> None:
    router = TopKRouter(TopKRouter.Config(k=1), RouterShape(6, 8))
    (router(torch.randn(16, 6)).weights_BE @ torch.arange(8.0)).sum().backward()
    assert (router.gate.weight.grad == 0).all()


@pytest.mark.parametrize(
    ("router", "kind"),
    [
        *(({"name": name}, kind) for name in ("hash", "thor") for kind in sorted(PENALTIES)),
        ({"name": "expert_choice"}, "switch"),  # balanced already
        ({"name": "base"}, "switch"),
        *(({"name": "topk", "permutation": True}, kind) for kind in ("load", "z_loss")),
    ],
)
def test_a_penalty_without_an_effect_is_refused(router: dict[str, object], kind: str) -> None:
    rule = rf"^penalties.{kind} .*router {router['name']}, .*got 0.25.*(penalties.{kind}=0|=f)"
    with pytest.raises(ConfigError, match=rule):
        parse_config({"model": {"router": router}, "penalties": {kind: 0.25}})
    parse_config({"model": {"router": router}, "penalties": {kind: 0.0}})


@pytest.mark.parametrize("kind", sorted(PENALTIES))
@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_exactly_the_penalties_without_a_gradient_are_refused(name: str, kind: str) -> None:
    """Inputs so large that dselect_k and comet are sparse: before that `switch` is constant."""
    torch.manual_seed(0)
    router = ROUTERS[name](ROUTERS[name].Config(), RouterShape(6, 8, 16)).train()
    x_BD = 60 * torch.randn(16, 6) if name in ("comet", "dselect_k") else torch.randn(16, 6)
    routing = router(x_BD, torch.arange(16))
    learns = getattr(routing, PENALTIES[kind][0]) is not None
    if learns:
        value = torch.as_tensor(penalty({kind: 1.0}, routing, router.kept))
        learns = value.requires_grad and any(
            bool((gradient.abs() > 1e-6).any())
            for gradient in torch.autograd.grad(value, list(router.parameters()), allow_unused=True)
            if gradient is not None
        )
    assert learns == (kind not in router.config.idle_penalties)


def test_importance_is_that_of_the_weights_and_not_of_the_probabilities() -> None:
    """Sums [1.5, .5], variance .25, mean 1. The probabilities are even and would give 0."""
    weights_BE = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    routing = Routing(weights_BE, weights_BE > 0, probs_BE=torch.full((2, 2), 0.5))
    assert penalty({"importance": 1.0}, routing, 1) == pytest.approx(0.25)


@pytest.mark.parametrize("kind", ["switch", "load", "z_loss", "trimmed_lasso"])
def test_a_penalty_that_a_custom_router_does_not_support_is_refused(kind: str) -> None:
    """Routers from outside the table are found out at the first step."""
    bare = Routing(PROBS, PROBS > 0)
    with pytest.raises(ConfigError, match=rf"penalties.{kind} must be 0 .*got 1.0; set it"):
        penalty({kind: 1.0}, bare, 2)
    assert penalty({kind: 0.0}, bare, 2) == 0


def test_every_penalty_has_a_setting() -> None:
    assert {*PENALTIES, COUPLING, DISAGREEMENT} == set(parse_config({}).penalties.model_dump())
    assert {*PENALTIES, COUPLING, DISAGREEMENT} == set(PENALTY_NAMES)
