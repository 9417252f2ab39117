"""Static shapes: the same pairs, values and gradients as with those that follow the choice.

Axes: B batch, T tasks, E experts, D input width, H expert width, N blocks.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recsys_moe.model import static_dispatch
from recsys_moe.model.dispatch import sparse_experts
from recsys_moe.model.experts import Dropout, Experts
from recsys_moe.model.moe import Dispatch, MoE
from recsys_moe.model.static_dispatch import block_size, plan_static, static_experts
from recsys_moe.routers import ROUTERS, router
from tests.model.test_moe import Foreign, assert_alike, masked_naive, pool, problem

B, E, D, H, USERS = 24, 16, 12, 10, 40


@settings(max_examples=60)
@given(st.integers(1, 40), st.integers(1, 3), st.integers(1, 9), st.integers(0, 10**6))
def test_every_chosen_pair_has_one_place_in_a_block_of_its_expert(
    rows: int, tasks: int, experts: int, seed: int
) -> None:
    """The least number of experts of an example that is allowed; blocks of 4, so most pad."""
    selected_BTE = problem(rows, tasks, experts, seed)[-1]
    used_BE = selected_BTE.any(1)
    most = max(int(used_BE.sum(-1).max()), 1)
    plan = plan_static(selected_BTE, most, block=4)
    last, found = len(plan.row_P) - 1, set()
    for row in range(rows):
        count = int(used_BE[row].sum())
        assert (plan.pair_BM[row, count:] == last).all()
        for pair in plan.pair_BM[row, :count].tolist():
            assert plan.row_P[pair] == row
            found.add((row, int(plan.expert_N[pair // 4]), pair))
    chosen = {(row, expert) for row, expert in used_BE.nonzero().tolist()}
    assert {(row, expert) for row, expert, _ in found} == chosen
    assert len({pair for *_, pair in found}) == len(found)
    is_padding_P = plan.column_P % (rows + 4) >= rows
    assert int((~is_padding_P).sum()) == len(found) and bool(is_padding_P[-1])


@pytest.mark.parametrize(
    ("rows", "most", "experts", "block"),
    [(2048, 4, 16, 64), (65_536, 4, 16, 2048), (512, 4, 16, 32), (1, 1, 64, 32)],
)
def test_blocks_are_a_power_of_two_of_at_least_32(
    rows: int, most: int, experts: int, block: int
) -> None:
    """2048 * 4 / (16 * 8) = 64; 65536 * 4 / 128 = 2048; 512 * 4 / 128 = 16, below the least."""
    assert block_size(rows, most, experts) == block


@pytest.mark.parametrize("rows", [1, 8, 300])
def test_dropped_units_carry_neither_value_nor_gradient(rows: int) -> None:
    """Against the definition with the mask that it drew, by its seed."""
    *leaves, selected_BTE = problem(rows, 2, 4, seed=7)
    x_BD, weights_BTE, *parts = leaves
    plan = plan_static(selected_BTE, 4, block_size(rows, 4, 4))
    dropout = Dropout(0.5).train()
    dropout.stream.reseed(3)
    keep_PH = dropout.mask((len(plan.row_P), parts[1].shape[-1]), x_BD)
    assert keep_PH is not None
    keep_BEH = torch.zeros(rows, 4, parts[1].shape[-1])
    keep_BEH.scatter_(1, plan.expert_BM[:, :, None].expand_as(keep_BEH), keep_PH[plan.pair_BM])
    expected = masked_naive(*leaves, keep_BEH)
    dropout.stream.reseed(3)
    out = static_experts(x_BD, weights_BTE, selected_BTE, pool(*parts, dropout), 4)
    assert_alike(out, expected, leaves, selected_BTE)


def test_weights_off_the_selection_get_no_gradient() -> None:
    *leaves, selected_BTE = problem(9, 2, 6, seed=1)
    x_BD, weights_BTE, *parts = leaves
    out = static_experts(x_BD, weights_BTE, selected_BTE, pool(*parts), 6)
    grad_BTE = torch.autograd.grad(out.square().sum(), weights_BTE)[0]
    assert not grad_BTE[~selected_BTE].any() and grad_BTE[selected_BTE].all()


def test_a_row_of_nan_stays_alone() -> None:
    """The last one, which padding evaluates."""
    *leaves, selected_BTE = problem(9, 2, 6, seed=1)
    x_BD, weights_BTE, *parts = (leaf.detach() for leaf in leaves)
    whole = static_experts(x_BD, weights_BTE, selected_BTE, pool(*parts), 6)
    x_BD[-1] = torch.nan
    broken = static_experts(x_BD, weights_BTE, selected_BTE, pool(*parts), 6)
    assert torch.equal(broken[:-1], whole[:-1]) and broken[-1].isnan().any()


def test_under_bfloat16_autocast_it_stays_close_to_float32() -> None:
    *leaves, selected_BTE = problem(9, 2, 6, seed=1)
    x_BD, weights_BTE, kernel_EDH, bias_EH = (leaf.detach().float() for leaf in leaves)
    args = (x_BD, weights_BTE, selected_BTE, pool(kernel_EDH, bias_EH))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = static_experts(*args, 6)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), sparse_experts(*args), rtol=0.05, atol=0.1)


def layer_of(name: str, dispatch: Dispatch = "static") -> MoE:
    torch.manual_seed(0)
    sizes = {"input_dim": D, "num_experts": E, "num_users": USERS, "num_tasks": 2}
    routers = [router(name, **sizes, task=task) for task in range(2)]
    for one in routers:
        one.setup(torch.arange(USERS))
    return MoE(Experts(E, D, H), routers, dispatch, seed=0).double()


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_every_router_has_the_mixtures_and_gradients_of_sparse_dispatch(
    name: str, is_training: bool
) -> None:
    """Where the layer takes static shapes, no router selects more than it promised."""
    found = []
    ways: tuple[Dispatch, Dispatch] = ("sparse", "static")
    for dispatch in ways:
        made = layer_of(name, dispatch).train(is_training)
        g = torch.Generator().manual_seed(1)
        x_BD = torch.randn(B, D, generator=g, dtype=torch.float64).requires_grad_()
        y_BTH, _ = made(x_BD, torch.arange(B) % USERS)
        leaves = [x_BD, *made.experts.parameters()]
        found.append([y_BTH, *torch.autograd.grad(y_BTH.square().mean(), leaves)])
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(here, there)


def test_all_experts_are_computed_where_routers_promise_little() -> None:
    """Also without rows, for expert output means, and for routers from outside."""

    def is_static(name: str, rows: int = 3) -> bool:
        made = layer_of(name).train()
        return made._is_static(torch.ones(rows, 2, E) > 0)

    static = {name for name in ROUTERS if is_static(name)}
    assert {"moesart", "topk", "pps", "smoe", "vmoe", "hash"} <= static
    assert not static & {"softmax", "relu", "default_moe", "top_p", "expert_choice"}
    assert not is_static("moesart", rows=0)
    made = layer_of("topk")
    made.routers[0] = Foreign(None)
    assert not made._is_static(torch.ones(3, 2, E) > 0)


def test_shapes_do_not_depend_on_the_choice() -> None:
    """Every tensor of the plan, whatever is chosen."""
    shapes = set()
    for k in range(4):
        selected_BTE = (torch.arange(5) < k).expand(7, 2, 5)
        shapes.add(tuple(tuple(of.shape) for of in plan_static(selected_BTE, 4, block=4)))
    pairs = (math.ceil(7 * 4 / 4) + 5) * 4
    assert shapes == {((pairs,), (pairs,), (pairs // 4,), (7, 4), (7, 4))}


def test_on_a_device_nothing_stays_on_the_host_and_no_value_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Forward and backward on tensors that have no values; sparse dispatch needs these."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    x_BD = torch.randn(B, D, device="meta", requires_grad=True)
    made = layer_of("topk").to("meta").float().train()
    y_BTH, _ = made(x_BD)
    y_BTH.sum().backward()
    assert x_BD.grad is not None and made.experts.kernel_EDH.grad.shape == (E, D, H)
    made.dispatch = "sparse"
    with pytest.raises(NotImplementedError, match="nonzero"):
        made(x_BD)


def test_blocks_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    *leaves, selected_BTE = problem(50, 2, 5, seed=4)
    x_BD, weights_BTE, *parts = leaves
    found: list[Tensor] = []
    for smallest in (1, 8, 64):
        monkeypatch.setattr(static_dispatch, "SMALLEST_BLOCK", smallest)
        found.append(static_experts(x_BD, weights_BTE, selected_BTE, pool(*parts), 5))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


def test_the_gradient_of_a_row_of_nan_stays_alone() -> None:
    """The last one, which padding evaluates, where rows visit fewer experts than they may."""
    *leaves, selected_BTE = problem(9, 2, 6, seed=1)
    selected_BTE = selected_BTE & (torch.arange(6) < 3)
    x_BD, weights_BTE, *parts = leaves
    out = static_experts(x_BD, weights_BTE, selected_BTE, pool(*parts), 6)
    probe = torch.ones_like(out)
    probe[-1] = torch.nan
    [grad_BD] = torch.autograd.grad(out, x_BD, probe)
    assert grad_BD[:-1].isfinite().all() and grad_BD[-1].isnan().any()
