"""Shared bottom, single task and CGC: which experts a task uses, with what weight.

Axes: B batch, E experts, D input width.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from recsys_moe import MoE
from recsys_moe.config.overview import overviews
from recsys_moe.config.settings import parse_config
from recsys_moe.errors import ConfigError
from recsys_moe.model.experts import Experts
from recsys_moe.model.moe import naive_moe
from recsys_moe.model.mtmoe import MultiTaskMoE
from recsys_moe.model.pair_plan import plan_pairs
from recsys_moe.model.shape import ModelShape
from recsys_moe.routers import ROUTERS, Router, router
from recsys_moe.train.fit import fit
from tests.conftest import TINY_MODEL

NAMES = ("shared_bottom", "single_task", "cgc")


def routers_of(name: str, experts: int, tasks: int, **settings: Any) -> list[Router]:
    sizes = {"input_dim": 3, "num_experts": experts, "num_tasks": tasks}
    return [router(name, task=task, **sizes, **settings) for task in range(tasks)]


def used(name: str, experts: int, tasks: int, **settings: Any) -> list[list[int]]:
    """The experts of each task; every row has the same."""
    found = []
    for made in routers_of(name, experts, tasks, **settings):
        selected_BE = made(torch.randn(4, 3)).selected_BE
        assert (selected_BE == selected_BE[0]).all()
        assert selected_BE[0].sum() == made.max_selected
        found.append(selected_BE[0].nonzero()[:, 0].tolist())
    return found


def test_the_shared_bottom_is_the_first_expert_or_the_mean_of_the_first() -> None:
    assert used("shared_bottom", 4, 2) == [[0], [0]]
    assert used("shared_bottom", 4, 2, shared=3) == [[0, 1, 2], [0, 1, 2]]
    weights_BE = router("shared_bottom", input_dim=3, num_experts=4, shared=2)(torch.ones(1, 3))
    assert weights_BE.weights_BE.tolist() == [[0.5, 0.5, 0, 0]]


@pytest.mark.parametrize(
    ("experts", "tasks", "expected"),
    [
        (4, 2, [[0, 1], [2, 3]]),
        (5, 2, [[0, 1, 2], [3, 4]]),  # the first task has one more
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (3, 1, [[0, 1, 2]]),
    ],
)
def test_single_tasks_divide_the_experts_in_order(
    experts: int, tasks: int, expected: list[list[int]]
) -> None:
    assert used("single_task", experts, tasks) == expected
    first, *_ = routers_of("single_task", experts, tasks)
    own = len(expected[0])
    weights = first(torch.randn(2, 3)).weights_BE[0].tolist()
    assert weights == pytest.approx([1 / own] * own + [0] * (experts - own))


@pytest.mark.parametrize(
    ("experts", "tasks", "shared", "expected"),
    [
        (6, 2, None, [[0, 1, 2, 3], [0, 1, 4, 5]]),  # 6 // 3 = 2 each, 2 shared
        (8, 2, None, [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 6, 7]]),  # 8 // 3 = 2 each, 4 shared
        (8, 2, 1, [[0, 1, 2, 3, 4], [0, 5, 6, 7]]),  # 7 among two: 4 and 3
        (4, 2, 0, [[0, 1], [2, 3]]),
        (4, 2, 2, [[0, 1, 2], [0, 1, 3]]),
    ],
)
def test_cgc_has_the_shared_experts_first_and_then_a_block_per_task(
    experts: int, tasks: int, shared: int | None, expected: list[list[int]]
) -> None:
    assert used("cgc", experts, tasks, shared=shared) == expected


def test_cgc_is_the_softmax_of_its_gate_over_own_and_shared_experts() -> None:
    """The second task of 4 experts, 2 shared: experts 0, 1, 3, whose logits are x_0, x_1, x_2.

    x = [0, ln 2, ln 5]: exp 1, 2, 5, sum 8: weights 1/8, 2/8, 0, 5/8.
    do_i = w_i (L_i - sum w L), L = [1, 2, 9, 4]: sum w L = (1 + 4 + 20) / 8 = 25/8, so
    do = [1/8 (-17/8), 2/8 (-9/8), 5/8 (7/8)] = [-17, -18, 35] / 64; expert 2 has no part in it.
    """
    made = routers_of("cgc", 4, 2, shared=2)[1].double()
    with torch.no_grad():
        made.gate.weight.copy_(torch.eye(3))
    x_BD = torch.tensor([[0, math.log(2), math.log(5)]], dtype=torch.float64, requires_grad=True)
    routing = made(x_BD)
    assert routing.weights_BE[0].tolist() == pytest.approx([1 / 8, 2 / 8, 0, 5 / 8])
    assert routing.selected_BE[0].tolist() == [True, True, False, True]
    loss_E = torch.tensor([1.0, 2, 9, 4], dtype=torch.float64)
    (routing.weights_BE @ loss_E).sum().backward()
    assert x_BD.grad[0].tolist() == pytest.approx([-17 / 64, -18 / 64, 35 / 64])  # type: ignore[index]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dispatch", ["sparse", "dense", "auto"])
def test_the_layer_is_the_naive_mixture_and_computes_the_union_of_the_masks(
    name: str, dispatch: Any
) -> None:
    layer = MoE(Experts(6, 3, 5), routers_of(name, 6, 2), dispatch).double().eval()
    x_BD = torch.randn(7, 3, dtype=torch.float64)
    mixed_BTH, routings = layer(x_BD)
    weights_BTE = torch.stack([routing.weights_BE for routing in routings], 1)
    expected = naive_moe(x_BD, weights_BTE, layer.experts.kernel_EDH, layer.experts.bias_EH)
    torch.testing.assert_close(mixed_BTH, expected)
    plan = plan_pairs(torch.stack([routing.selected_BE for routing in routings], 1))
    assert len(plan.real_R) == 7 * {"shared_bottom": 1, "single_task": 6, "cgc": 6}[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_model_tells_each_router_its_task(name: str) -> None:
    model = MultiTaskMoE(
        MultiTaskMoE.Config(router=ROUTERS[name].Config(), embedding_dim=2, num_experts=9),
        ModelShape(5, 5, 3),
    )
    assert [(made.shape.task, made.shape.num_tasks) for made in model.routers] == [
        (0, 3),
        (1, 3),
        (2, 3),
    ]


@pytest.mark.parametrize(
    ("name", "sizes", "said"),
    [
        ("shared_bottom", {"shared": 5}, r"router.shared .*got 5"),
        ("single_task", {"num_tasks": 5}, "at .*got 4"),
        ("cgc", {"num_tasks": 4}, "above .*got 4"),
        ("cgc", {"num_tasks": 2, "shared": 3}, "expert .*got 3"),
        ("cgc", {"num_tasks": 2, "task": 2}, r"task .*got 2"),
    ],
)
def test_what_cannot_be_divided_is_refused_with_rule_value_and_remedy(
    name: str, sizes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        router(name, input_dim=3, num_experts=4, **sizes)


def test_a_fit_that_cannot_be_divided_is_refused_before_anything_is_written(
    prepared: Path, tmp_path: Path
) -> None:
    """Two tasks; the configuration alone does not say how many there are."""
    config = parse_config({"model": {**TINY_MODEL, "num_experts": 2, "router": "cgc"}})
    with pytest.raises(ConfigError, match="above the number of tasks, 2, for cgc"):
        fit(config, prepared, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_the_table_of_routers_counts_tasks_and_names_what_does_not_work() -> None:
    """16 experts, 3 tasks: 4 each and 4 shared, so 8 logits of 257 parameters."""
    weights = {"tasks": {name: {"weight": 1} for name in "abc"}}
    cgc = overviews(parse_config(weights))["cgc"]
    assert (cgc.training, cgc.inference, cgc.parameters) == ("8 fixed", "8 fixed", 8 * 257)
    few = overviews(parse_config({"model": {"num_experts": 2, "router": "softmax"}}))
    assert few["single_task"].training == "1 fixed"
    assert few["cgc"].training is None and "set model.router.shared=0" in str(few["cgc"].problem)


@pytest.mark.parametrize(("name", "most"), [("cgc", 15), ("shared_bottom", 16)])
def test_more_shared_experts_than_there_can_be_are_refused_without_data(
    name: str, most: int
) -> None:
    raw = {"model": {"router": {"name": name, "shared": most}}}
    assert parse_config(raw).model.router.shared == most
    raw["model"]["router"]["shared"] = most + 1
    with pytest.raises(ConfigError, match=rf"router.shared .*=16, got {most + 1};"):
        parse_config(raw)


def test_the_gate_of_cgc_starts_as_every_linear_gate() -> None:
    """Glorot: uniform up to sqrt(6 / (D + M)); PyTorch's own start ends at 1 / sqrt(D)."""
    gate = router("cgc", input_dim=60, num_experts=6, num_tasks=2, task=0).gate
    bound = math.sqrt(6 / (60 + gate.out_features))
    assert 0.9 * bound < gate.weight.abs().max() <= bound and bound > 2 / math.sqrt(60)
    assert not gate.bias.any()
