"""One contract for every router of the table; a new router is covered the day it is listed.

Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from recsys_moe.config.settings import ConfigError, parse_config
from recsys_moe.routers import ROUTERS, Router, RouterShape, Routing

D, E, USERS = 6, 8, 20
NAMES = sorted(ROUTERS)
PER_ROW = [name for name in NAMES if not ROUTERS[name].batch_dependent]


def make(name: str, num_experts: int = E, **settings: object) -> Router:
    torch.manual_seed(0)
    router_class = ROUTERS[name]
    # The second of two tasks: routers whose experts are fixed per task leave some of them out.
    shape = RouterShape(D, num_experts, USERS, task=1, num_tasks=2)
    router = router_class(router_class.Config(**settings), shape)
    router.setup(torch.arange(USERS))
    return router


def route(router: Router, x_BD: Tensor) -> Routing:
    users_B = torch.arange(len(x_BD)) % (USERS + 1)
    return router(x_BD, users_B)


def batch(rows: int = 12, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(rows, D, generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 12])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_weights_are_nonnegative_and_zero_off_the_selection(
    name: str, training: bool, rows: int, scale: float
) -> None:
    router = make(name).train(training)
    routing = route(router, batch(rows, scale))
    assert routing.weights_BE.shape == routing.selected_BE.shape == (rows, E)
    assert routing.weights_BE.dtype == torch.float32 and routing.selected_BE.dtype == torch.bool
    assert torch.isfinite(routing.weights_BE).all() and (routing.weights_BE >= 0).all()
    assert (routing.weights_BE[~routing.selected_BE] == 0).all()
    assert (routing.selected_BE.sum(-1) <= router.max_selected).all()
    assert (routing.weights_BE.sum(-1) <= router.max_sum + 1e-5).all()


@pytest.mark.parametrize("training", [True, False])
def test_probabilities_and_logits_agree_where_a_router_has_them(name: str, training: bool) -> None:
    routing = route(make(name).train(training), batch())
    if routing.probs_BE is not None:
        torch.testing.assert_close(routing.probs_BE.sum(-1), torch.ones(12))
    if routing.logits_BE is not None and routing.probs_BE is not None:
        torch.testing.assert_close(routing.logits_BE.softmax(-1), routing.probs_BE)


def test_zero_logits_select_by_index_and_not_by_value(name: str) -> None:
    """All logits are exactly 0 for x = 0: a rule like `logit == 0 means unselected` drops all."""
    router = make(name).eval()
    routing = route(router, torch.zeros(2 * E, D))
    # Expert Choice keeps 2E * k / E rows per expert, the first ones: 2k of them. The ReLU's rule
    # is the sign, and 0 has none.
    expected = {"expert_choice": 2 * router.kept, "relu": 0}.get(name, 2 * E)
    assert routing.selected_BE.any(-1).sum() == expected
    assert (routing.selected_BE.sum(-1) <= router.max_selected).all()


def test_evaluation_is_deterministic(name: str) -> None:
    router = make(name).eval()
    first, second = route(router, batch()), route(router, batch())
    assert torch.equal(first.weights_BE, second.weights_BE)
    assert torch.equal(first.selected_BE, second.selected_BE)


def test_training_draws_are_a_function_of_the_seed(name: str) -> None:
    router = make(name).train()
    router.stream.reseed(7)
    first = route(router, batch(64)).weights_BE
    router.stream.reseed(7)
    assert torch.equal(first, route(router, batch(64)).weights_BE)


QUIET: dict[str, dict[str, object]] = {
    **dict.fromkeys(("softmax", "topk", "default_moe", "xmoe", "loss_free", "relu", "cgc"), {}),
    **dict.fromkeys(("dselect_k", "comet", "soft_topk", "sparse_ot", "expert_choice"), {}),
    **dict.fromkeys(("top_p", "kmeans"), {}),
    **dict.fromkeys(("hash", "shared_bottom", "single_task"), {}),
    "vmoe": {"noise": 0.0},
    "expert_threshold": {"warmup": 0},
    "smoe": {"jitter": 0.0},
}


@pytest.mark.parametrize("name", QUIET)
def test_without_noise_training_decides_as_evaluation(name: str) -> None:
    """tests/independent compares evaluation with the formulas."""
    router = make(name, **QUIET[name])
    routings = [route(router.train(training), batch()) for training in (True, False)]
    torch.testing.assert_close(*(routing.weights_BE for routing in routings))
    assert torch.equal(*(routing.selected_BE for routing in routings))


@pytest.mark.parametrize("name", PER_ROW)
def test_permuting_the_examples_permutes_the_decision(name: str) -> None:
    router, x_BD = make(name).eval(), batch()
    order = torch.randperm(len(x_BD), generator=torch.Generator().manual_seed(2))
    users = torch.arange(len(x_BD))
    straight, permuted = router(x_BD, users), router(x_BD[order], users[order])
    torch.testing.assert_close(straight.weights_BE[order], permuted.weights_BE)
    assert torch.equal(straight.selected_BE[order], permuted.selected_BE)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_gradients_are_finite_in_float32_under_bf16_autocast(name: str, scale: float) -> None:
    router = make(name).train()
    x_BD = batch(scale=scale).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        routing = route(router, x_BD)
    loss = (routing.weights_BE * torch.linspace(-1, 1, E)).sum()
    loss = loss + sum(routing.losses.values())
    if not loss.requires_grad:
        pytest.skip(f"{name} decides without parameters")
    loss.backward()
    assert routing.weights_BE.dtype == torch.float32
    gradients = [p.grad for p in (x_BD, *router.parameters()) if p.grad is not None]
    assert all(torch.isfinite(g).all() and g.dtype == torch.float32 for g in gradients)


def test_the_router_teaches_the_embeddings(name: str) -> None:
    """The gradient of the input, which is what the embedding tables learn from."""
    router, x_BD = make(name).train(), batch().requires_grad_()
    routing = route(router, x_BD)
    if not any(True for _ in router.parameters()):
        assert not routing.weights_BE.requires_grad
        return
    (routing.weights_BE * torch.linspace(-1, 1, E)).sum().backward()
    assert x_BD.grad is not None and torch.isfinite(x_BD.grad).all()
    # of 12 rows; with these a row whose chosen expert stands alone has no gradient
    assert (x_BD.grad != 0).any(-1).sum() > (3 if name in ("sparsemixer", "top_p") else 6)


@pytest.mark.parametrize("training", [True, False])
def test_as_many_experts_as_are_kept_is_fine(name: str, training: bool) -> None:
    fields = ROUTERS[name].Config.model_fields
    router = make(name, **({"k": E} if "k" in fields else {})).train(training)
    routing = route(router, batch())
    assert (routing.selected_BE.sum(-1) <= E).all() and torch.isfinite(routing.weights_BE).all()


@pytest.mark.parametrize("name", [n for n in NAMES if "k" in ROUTERS[n].Config.model_fields])
@pytest.mark.parametrize("k", [0, -1, E + 1])
def test_an_impossible_k_is_refused_with_rule_value_and_remedy(name: str, k: int) -> None:
    message = rf"^model\.router\.k .*model\.num_experts={E}, got {k}(\.0)?;"
    with pytest.raises(ConfigError, match=message):
        parse_config({"model": {"num_experts": E, "router": {"name": name, "k": k}}})
    with pytest.raises(ValueError, match=rf"k .*={E}, got {k}(\.0)?;"):
        make(name, k=k)


def out_of_range() -> list[tuple[str, str, float]]:
    """Every setting of every router, with a value beyond each of its bounds."""
    found = []
    for name in NAMES:
        for key, field in ROUTERS[name].Config.model_fields.items():
            for sign, beyond in (("gt", 0), ("lt", 0), ("ge", -1), ("le", 1)):
                for rule in field.metadata:
                    if hasattr(rule, sign):
                        found.append((name, key, getattr(rule, sign) + beyond))
    return found


@pytest.mark.parametrize(("name", "key", "value"), out_of_range())
def test_a_setting_out_of_its_range_is_refused_with_rule_value_and_remedy(
    name: str, key: str, value: float
) -> None:
    message = rf"^model\.router\.{key}.*(to|than|of|in) .*got {value}(\.0)?;.* [^ ]"
    with pytest.raises(ConfigError, match=message):
        parse_config({"model": {"router": {"name": name, key: value}}})
    with pytest.raises(ValueError, match="(?i)input should be|must be"):
        ROUTERS[name].Config(**{key: value})


@pytest.mark.parametrize(
    ("name", "settings", "num_experts", "message"),
    [
        ("comet", {"k": 1}, 1, "num_experts .*2 .*got 1"),
        ("dselect_k", {"k": 1}, 1, "num_experts .*2 .*got 1"),
        ("moesart", {"k": 1}, E, r"model\.router\.k must be at least 2.*, got 1"),
        ("soft_topk", {"p": 3}, E, r"2 or '4/3', got 3.*model\.router\.p=4/3"),
    ],
)
def test_a_setting_without_a_meaning_is_refused(
    name: str, settings: dict[str, object], num_experts: int, message: str
) -> None:
    model = {"num_experts": num_experts, "router": {"name": name, **settings}}
    with pytest.raises(ConfigError, match=message):
        parse_config({"model": model})


@pytest.mark.parametrize(
    ("old", "new"), [("settle", "on_step_end"), ("advance", "set_epoch"), ("start", "setup")]
)
def test_a_hook_by_its_old_name_is_refused_with_the_new_one(old: str, new: str) -> None:
    outside = type("Own", (ROUTERS["topk"],), {old: lambda self, *_: None})
    with pytest.raises(ConfigError, match=rf"^[^\n]*Own\.{old} must be named {new}; [^\n]*$"):
        outside(outside.Config(), RouterShape(D, E))


def test_only_routers_that_say_so_have_rows_that_sum_to_more_than_1() -> None:
    """The k = 2 weights of SparseMixer are of two softmaxes; those of ReLU are of any size, and
    those of the thresholds n sigmoids."""
    unusual = {name: make(name).max_sum for name in NAMES if make(name).max_sum != 1}
    assert unusual == {"relu": math.inf, "sparsemixer": 2, "expert_threshold": E}


def test_forward_and_evaluation_leave_the_state_as_it_is(name: str) -> None:
    """What is learned from counts is learned in `on_step_end`: a step may have several passes."""
    router = make(name).train()
    before = copy.deepcopy(router.state_dict())
    for training in (True, True, False):
        route(router.train(training), batch())
    router.train()
    after = router.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_state_dict_round_trip_keeps_the_decisions(name: str) -> None:
    router = make(name)
    route(router.train(), batch())
    other = make(name)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    other.load_state_dict(copy.deepcopy(router.state_dict()))
    for training in (True, False):
        for either in (router, other):
            either.train(training).stream.reseed(3)
        first, second = route(router, batch()), route(other, batch())
        assert torch.equal(first.weights_BE, second.weights_BE), training
